// Wires the page: one button, one call at a time, every failure said in words with a way out.

import { Call, CallError } from "./call.js";
import { Meters } from "./meters.js";
import { Pass } from "./pass.js";
import { Transcript } from "./transcript.js";

const $ = (id) => document.getElementById(id);
const RETRY_S = [1, 2, 4, 8];
const FIRST_ANSWER = "thinking";

const STATUS = {
  idle: "Ready",
  connecting: "Connecting…",
  listening: "Listening",
  hearing: "Hearing you",
  thinking: "Thinking…",
  speaking: "Speaking",
  ended: "Call ended",
  retrying: "Reconnecting…",
};

const ENDINGS = {
  caller_hung_up: "Call ended",
  agent_goodbye: "The agent said goodbye",
  idle_timeout: "Ended: nobody spoke for a while",
  max_duration: "Ended: the longest allowed call",
  operator_hung_up: "Ended by the operator",
  server_draining: "Ended: the server is shutting down",
  server_error: "Ended by a fault of the server",
};

const pass = new Pass();
let call = null;
let ended = "";
let lastFault = null;
let attempts = 0;
let timer = 0;
let starting = false;

const meters = new Meters({ input: $("level-in"), output: $("level-out") });
const transcript = new Transcript($("turns"), (text) => { $("spoken").textContent = text; });

function show(state, words = STATUS[state]) {
  document.body.dataset.state = state;
  $("status").textContent = words;
  const live = !["idle", "ended"].includes(state);
  $("talk-label").textContent = live ? "End the call" : "Start talking";
}

function notice(title, text = "", { steps = [], action = "", run = null } = {}) {
  $("notice").hidden = false;
  $("notice-title").textContent = title;
  $("notice-text").textContent = text;
  $("notice-steps").hidden = !steps.length;
  $("notice-steps").replaceChildren(...steps.map((step) => {
    const item = document.createElement("li");
    for (const [i, part] of step.split("`").entries()) {
      const piece = document.createElement(i % 2 ? "code" : "span");
      piece.textContent = part;
      item.append(piece);
    }
    return item;
  }));
  $("notice-action").hidden = !action;
  $("notice-action").textContent = action;
  $("notice-action").onclick = run;
}

function calm() {
  clearTimeout(timer);
  $("notice").hidden = true;
}

// What was cut is not played out of the browser's buffer either: the server counts it as unheard.
function hush(ms) {
  $("voice").muted = true;
  setTimeout(() => { $("voice").muted = false; }, ms);
}

function onEvent(data) {
  switch (data.type) {
    case "started": transcript.newCall(); break;
    case "speech": show("hearing"); break;
    case "partial": transcript.partial(data.turn, data.confirmed, data.tail); break;
    case "final":
      transcript.final(data.turn, data.text);
      show(data.text ? FIRST_ANSWER : "listening");
      break;
    case "reopened": transcript.reopened(data.turn); break;
    case "reply": transcript.reply(data.reply); break;
    case "text": transcript.text(data.reply, data.delta); break;
    case "heard":
      transcript.heard(data.reply, data.chars);
      if (document.body.dataset.state !== "hearing") show("speaking");
      break;
    case "done":
      if (data.status === "interrupted") hush(call?.playback.behindMs);
      transcript.done(data.reply, data.status, data.heard);
      if (["speaking", "thinking"].includes(document.body.dataset.state)) show("listening");
      break;
    case "trace": transcript.trace(data); break;
    case "error":
      lastFault = data;
      notice("Something went wrong", `${data.message} (${data.code})`);
      break;
    case "ended": ended = data.reason; break;
  }
}

async function start() {
  if (starting) return;
  calm();
  if (!pass.good) {
    starting = true;
    const fine = await admitted();
    starting = false;
    if (!fine) return;
  }
  ended = "";
  lastFault = null;
  $("welcome").hidden = true;
  $("agent").disabled = true;
  show(attempts ? "retrying" : "connecting");
  const mine = (call = new Call({
    event: onEvent,
    input: (stream) => meters.attach("input", stream),
    output: (stream) => {
      $("voice").srcObject = stream;
      meters.attach("output", stream);
    },
    outputLatency: () => meters.outputLatency,
    connected: () => {
      attempts = 0;
      show("listening");
    },
    closed: (error) => mine === call && finished(error),
  }));
  mine.start($("agent").value, pass.headers).catch((error) => mine.close(
    error instanceof CallError ? error : new CallError("refused", error.message),
  ));
}

function finished(error) {
  const wasLive = !["connecting", "retrying"].includes(document.body.dataset.state);
  call = null;
  meters.stop();
  $("voice").srcObject = null;
  $("agent").disabled = false;
  if (ended || !error) {
    attempts = 0;
    show("ended", ENDINGS[ended] || STATUS.ended);
    if (ended === "server_error" && !lastFault) notice("The call ended", ENDINGS.server_error);
    return;
  }
  explain(error, wasLive);
}

const again = { action: "Try again", run: () => { attempts = 0; start(); } };

function explain(error, wasLive) {
  show("idle");
  $("welcome").hidden = $("turns").childElementCount > 0;
  switch (error.kind) {
    case "insecure":
      notice("No microphone on an insecure page", "Browsers open the microphone only on https or "
        + "on localhost. To reach this server from another machine, either", {
        steps: [
          "start it with `voice-agent up --tls-self-signed` and open its https address, or",
          `make a tunnel \`ssh -L ${location.port || 80}:localhost:${location.port || 80} `
            + `${location.hostname}\` and open \`http://localhost:${location.port || 80}\``,
        ],
      });
      break;
    case "microphone-denied":
      notice("The microphone is blocked", "Allow it for this page in the address bar of your "
        + "browser, then try again.", again);
      break;
    case "no-microphone":
      notice("No microphone found", "Plug one in or choose one in your system's sound settings, "
        + "then try again.", again);
      break;
    case "microphone-busy":
      notice("The microphone is in use", "Another program holds it. Close that program, then try "
        + "again.", again);
      break;
    case "key":
      $("key-form").hidden = false;
      $("key").focus();
      break;
    case "full":
      countdown(error);
      break;
    case "lost":
    case "unreachable":
      retry(error, wasLive);
      break;
    default:
      notice("The call could not start", error.message, again);
  }
}

function countdown(error) {
  let left = Math.ceil(error.retryAfter);
  const title = "All lines are busy";
  const tick = () => {
    if (left <= 0) return start();
    notice(title, `${error.message} Trying again in ${left} s.`, {
      action: "Stop trying", run: () => { calm(); show("idle"); },
    });
    left -= 1;
    timer = setTimeout(tick, 1000);
  };
  tick();
}

function retry(error, wasLive) {
  if (attempts >= RETRY_S.length) {
    notice("The connection is lost", error.message || "The server can't be reached.", again);
    attempts = 0;
    return;
  }
  const wait = RETRY_S[attempts];
  attempts += 1;
  show("retrying");
  notice(wasLive ? "Connection lost" : "No connection",
    `${error.message} Trying again in ${wait} s (${attempts} of ${RETRY_S.length}).`.trim(), {
      action: "Stop trying",
      run: () => { calm(); attempts = 0; show("idle"); },
    });
  timer = setTimeout(start, wait * 1000);
}

function toggle() {
  if (call) {
    call.hangUp();
  } else if (document.body.dataset.state === "retrying") {
    calm();
    attempts = 0;
    show("idle");
  } else {
    attempts = 0;
    start();
  }
}

// True once there is a token; without one it has said why.
async function admitted(key = "") {
  let names;
  try {
    names = await pass.get(key);
  } catch (error) {
    if (error.kind === "unreachable" && !starting && !key) return false; // the button tries again
    if (error.kind === "key" && key) $("key-hint").textContent = "That key is not known here.";
    explain(error.kind === "refused" ? new CallError("refused", error.message) : error, false);
    return false;
  }
  $("key-form").hidden = true;
  if ($("agent").options.length !== names.length) {
    $("agent").replaceChildren(...names.map((name) => new Option(name, name)));
  }
  $("agent-box").hidden = names.length < 2;
  return true;
}

$("talk").addEventListener("click", toggle);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && call) call.hangUp();
});
$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  $("key").value = "";
  if (await admitted(key)) $("talk").focus();
});
window.addEventListener("pagehide", () => call?.hangUp());

show("idle");
if (!window.isSecureContext) explain(new CallError("insecure", ""), false);
else await admitted();
