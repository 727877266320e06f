// Wires the page: one button, one call at a time, every failure said in words with a way out.

import { Call, CallError, leave } from "./call.js";
import { Meters } from "./meters.js";
import { Pass } from "./pass.js";
import { SocketCall } from "./socket_call.js";
import { Sound } from "./sound.js";
import { Transcript } from "./transcript.js";
import { askForPlace, placeInWords } from "./waiting.js";
import { t, translate } from "./words.js";

const $ = (id) => document.getElementById(id);
const RETRY_S = [1, 2, 4, 8];
const RESUME_S = [1, 3]; // between two attempts to go on with a call, which waits for so long only
const FIRST_ANSWER = "thinking";

const ENDINGS = ["agent_goodbye", "idle_timeout", "max_duration", "operator_hung_up",
  "server_draining", "server_error"]; // what has words of its own

translate();
const pass = new Pass();
let call = null;
let held = null; // of a call without a line, between two attempts to go on with it
let ended = "";
let lastFault = null;
let attempts = 0;
let ticket = ""; // of the queue, while there is no line
let timer = 0;
let queued = 0; // counts what ends a wait in the queue
let starting = false;
let bySocket = false; // WebRTC can't connect: so it is for as long as the page is open

const meters = new Meters({ input: $("level-in"), output: $("level-out") });
const sound = new Sound({
  mute: $("mute"), push: $("push"), microphone: $("microphone"), loudspeaker: $("loudspeaker"),
  loudspeakerBox: $("loudspeaker-box"), volume: $("volume"), voice: $("voice"),
}, {
  mute: (on) => {
    call?.mute(on);
    if (document.body.dataset.state === "listening") show("listening");
  },
  microphone: (id) => call?.listenTo(id).catch((error) => call?.close(error)),
});
const transcript = new Transcript($("turns"), (text) => { $("spoken").textContent = text; });

function show(state, words = t(state)) {
  if (bySocket && ["connecting", "listening"].includes(state)) words = t(`${state}_socket`);
  document.body.dataset.state = state;
  $("status").textContent = sound.muted && state === "listening" ? t("muted") : words;
  const live = !["idle", "ended"].includes(state);
  $("talk-label").textContent = t(live ? "end" : "start");
  $("during").hidden = !live || ["connecting", "retrying", "resuming"].includes(state);
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
  queued += 1;
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
      if (["interrupted", "cancelled"].includes(data.status)) hush(call?.playback.behindMs);
      transcript.done(data.reply, data.status, data.heard);
      if (["speaking", "thinking"].includes(document.body.dataset.state)) show("listening");
      break;
    case "trace": transcript.trace(data); break;
    case "error":
      lastFault = data;
      notice(t("wrong"), `${data.message} (${data.code})`);
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
  connect();
}

// back: of a call to go on with.
function connect(back = null) {
  const mine = (call = new (bySocket ? SocketCall : Call)({
    event: onEvent,
    input: (stream) => meters.attach("input", stream),
    output: (stream) => {
      $("voice").srcObject = stream;
      meters.attach("output", stream);
    },
    outputLatency: () => meters.outputLatency,
    connected: () => {
      attempts = 0;
      ticket = "";
      show("listening");
      if (!back) sound.begin();
    },
    closed: (error, kept) => mine === call && finished(error, kept),
  }, back));
  mine.muted = !!back && sound.muted;
  mine.ticket = ticket;
  mine.start($("agent").value, pass.headers, sound.microphone).catch((error) => mine.close(
    error instanceof CallError ? error : new CallError("refused", error.message),
  ));
}

function finished(error, back) {
  const wasLive = !["connecting", "retrying"].includes(document.body.dataset.state);
  call = null;
  meters.stop();
  $("voice").srcObject = null;
  if (back && !ended && performance.now() < back.until) {
    resume(error, back);
    return;
  }
  if (back) drop(back);
  if (back && !ended) error = new CallError("gone", "");
  $("agent").disabled = false;
  if (ended || !error) {
    attempts = 0;
    show("ended", t(ENDINGS.includes(ended) ? ended : "ended"));
    if (ended === "server_error" && !lastFault) notice(t("call_ended"), t("server_error"));
    return;
  }
  explain(error, wasLive);
}

// The server keeps the call for a while: another line goes on with it.
function resume(error, back) {
  calm();
  show("resuming");
  if (["no-media", "no-socket"].includes(error.kind)) bySocket = error.kind === "no-media";
  held = back;
  const [least, most] = RESUME_S;
  const wait = error.kind === "lost" ? 0 : Math.min(most, Math.max(least, error.retryAfter));
  timer = setTimeout(tryAgain, wait * 1000);
}

function tryAgain() {
  if (!held) return;
  const back = held;
  held = null;
  clearTimeout(timer);
  connect(back);
}

function drop(back) {
  for (const track of back.stream?.getTracks() || []) track.stop();
}

const again = { action: t("again"), run: () => { attempts = 0; start(); } };

function explain(error, wasLive) {
  show("idle");
  $("welcome").hidden = $("turns").childElementCount > 0;
  switch (error.kind) {
    case "insecure":
      notice(t("insecure"), t("insecure_text"), {
        steps: [
          t("insecure_tls"),
          t("insecure_ssh", {
            tunnel: `ssh -L ${location.port || 80}:localhost:${location.port || 80} `
              + location.hostname,
            address: `http://localhost:${location.port || 80}`,
          }),
        ],
      });
      break;
    case "microphone-denied": notice(t("denied"), t("denied_text"), again); break;
    case "no-microphone": notice(t("none"), t("none_text"), again); break;
    case "microphone-busy": notice(t("busy"), t("busy_text"), again); break;
    case "key":
      $("key-form").hidden = false;
      $("key").focus();
      break;
    case "full":
      wait(error);
      break;
    case "no-media":
      bySocket = true;
      start();
      break;
    case "gone": notice(t("lost"), t("lost_for_good"), again); break;
    case "no-socket": notice(t("refused"), t("no_socket"), again); break;
    case "later": countdown(error, t("refused")); break;
    case "lost":
    case "unreachable":
      retry(error, wasLive);
      break;
    default:
      notice(t("refused"), error.message, again);
  }
}

// In the queue until a line is kept for this page; where there is no queue, or none is left: again later.
async function wait(error) {
  const mine = ++queued;
  let seen;
  try {
    if (!pass.good) await pass.get();
    seen = await askForPlace(ticket, pass.headers);
  } catch (refusal) {
    if (mine === queued) countdown(refusal.kind === "full" ? refusal : error);
    return;
  }
  if (mine !== queued) return;
  ticket = seen.ticket;
  if (!seen.place) {
    start();
    return;
  }
  notice(t("full"), placeInWords(seen), {
    action: t("leave_line"), run: () => { calm(); ticket = ""; show("idle"); },
  });
  timer = setTimeout(() => wait(error), 1000 * seen.ask_s);
}

function countdown(error, title = t("full")) {
  let left = Math.ceil(error.retryAfter);
  const tick = () => {
    if (left <= 0) return start();
    notice(title, `${error.message} ${t("trying", { s: left })}`, {
      action: t("stop_trying"), run: () => { calm(); show("idle"); },
    });
    left -= 1;
    timer = setTimeout(tick, 1000);
  };
  tick();
}

function retry(error, wasLive) {
  if (attempts >= RETRY_S.length) {
    notice(t("lost"), error.message || t("unreachable"), again);
    attempts = 0;
    return;
  }
  const wait = RETRY_S[attempts];
  attempts += 1;
  show("retrying");
  notice(t(wasLive ? "lost_now" : "no_connection"),
    `${error.message} ${t("trying_nth", { s: wait, n: attempts, of: RETRY_S.length })}`.trim(), {
      action: t("stop_trying"),
      run: () => { calm(); attempts = 0; show("idle"); },
    });
  timer = setTimeout(start, wait * 1000);
}

function toggle() {
  if (call) {
    call.hangUp();
  } else if (held) {
    clearTimeout(timer);
    leave(held.token);
    drop(held);
    held = null;
    finished(null, null);
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
    if (error.kind === "key" && key) $("key-hint").textContent = t("key_unknown");
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
$("write-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("write").value.trim();
  if (!text || !call?.write(text)) return;
  $("write").value = "";
  transcript.written(text);
  show(FIRST_ANSWER);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && (call || held)) toggle();
});
$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  $("key").value = "";
  if (await admitted(key)) $("talk").focus();
});
window.addEventListener("pagehide", () => {
  const token = (call || held)?.token;
  call?.hangUp();
  if (token) leave(token); // what is sent over the line may not leave any more
});
window.addEventListener("online", tryAgain);

show("idle");
if (!window.isSecureContext) explain(new CallError("insecure", ""), false);
else await admitted();
