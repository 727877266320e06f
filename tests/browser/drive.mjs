// Drives the page in headless Chromium with a fake microphone; prints one JSON object of what it saw.
//
//   node drive.mjs '{"url": ..., "chromium": ..., "wav": ..., "shots": DIR, "scene": ..., ...}'
//
// scenes: call (a whole conversation with a barge-in), behind, idle, full, key, insecure,
//         socket (WebRTC can't connect: option webrtc is "blocked" or "missing"),
//         door (a socket is refused, one call having been taken: option key),
//         resume (the connection is killed from outside during a reply: option fails, so many attempts to
//         come back fail first), resume-late (it comes back too late),
//         line (what the browser's own statistics say of the agent's sound: options learn_s, then
//         seconds), denied, lost, sound (muting, holding to talk, typing, volume), ops (somebody is on the line), ops-key

import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";

import { chromium } from "playwright-core";

const o = { scene: "call", timeout: 30000, width: 1280, height: 800, ...JSON.parse(process.argv[2]) };
const saw = { scene: o.scene, console_errors: [], shots: [] };

const flags = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
  "--use-fake-device-for-media-stream", "--autoplay-policy=no-user-gesture-required",
  "--allow-loopback-in-peer-connection", "--ignore-certificate-errors",
];
if (o.scene !== "denied") flags.push("--use-fake-ui-for-media-stream");
if (o.wav) flags.push(`--use-file-for-fake-audio-capture=${o.wav}`);
if (o.secure) flags.push(`--unsafely-treat-insecure-origin-as-secure=${o.secure}`); // http, not of this machine

const browser = await chromium.launch({ executablePath: o.chromium, headless: true, args: flags });
const context = await browser.newContext({
  viewport: { width: o.width, height: o.height }, colorScheme: o.color || "light",
  locale: o.locale || "en-GB", reducedMotion: o.reduced ? "reduce" : "no-preference", ignoreHTTPSErrors: true,
});
const page = await context.newPage();
page.setDefaultTimeout(o.timeout);
page.on("pageerror", (error) => saw.console_errors.push(String(error)));
page.on("console", (message) => {
  if (message.type() === "error") saw.console_errors.push(message.text());
});

const shot = async (name) => {
  if (!o.shots) return;
  const path = `${o.shots}/${name}-${o.width}-${o.color || "light"}.png`;
  await page.screenshot({ path });
  saw.shots.push(path);
};
// What breaks WCAG 2.2 A and AA, as axe sees it: "rule: first element". What is just fading in has
// not its own contrast yet: nothing moves meanwhile.
const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const faults = async () => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await page.evaluate(axe);
  const found = await page.evaluate(async () => (await window.axe.run(document, {
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
  })).violations.map((v) => `${v.id}: ${v.nodes[0].html}`));
  await page.emulateMedia({ reducedMotion: o.reduced ? "reduce" : "no-preference" });
  return found;
};
const status = () => page.textContent("#status");
const state = (...names) => page.waitForFunction(
  (wanted) => wanted.includes(document.body.dataset.state), names);
const texts = (selector) => page.$$eval(selector, (all) => all.map((e) => e.textContent));

// Root mean square of the agent's voice over `ms`, read from the stream that the page plays.
const agentRms = (ms) => page.evaluate(async (duration) => {
  window.testContext ||= new AudioContext();
  await window.testContext.resume();
  const stream = document.querySelector("#voice").srcObject;
  if (!stream) return { rms: 0 };
  const analyser = window.testContext.createAnalyser();
  analyser.fftSize = 1024;
  const source = window.testContext.createMediaStreamSource(stream);
  source.connect(analyser);
  const samples = new Float32Array(1024);
  const end = performance.now() + duration;
  let loudest = 0;
  while (performance.now() < end) {
    await new Promise((r) => setTimeout(r, 15));
    analyser.getFloatTimeDomainData(samples);
    const rms = Math.sqrt(samples.reduce((a, s) => a + s * s, 0) / samples.length);
    loudest = Math.max(loudest, rms);
  }
  source.disconnect();
  return { rms: loudest };
}, ms);

// Watches the voice from now on: the longest silence that ends within 2 s after a reply was cut.
const watchSilence = () => page.evaluate(() => {
  const context = (window.testContext ||= new AudioContext());
  const seen = (window.silence = { cut_at: null, longest_ms: 0 });
  const samples = new Float32Array(1024);
  let analyser = null, since = performance.now();
  setInterval(() => {
    const stream = document.querySelector("#voice").srcObject, now = performance.now();
    if (!analyser && stream) {
      analyser = context.createAnalyser();
      analyser.fftSize = 1024;
      context.createMediaStreamSource(stream).connect(analyser);
    }
    if (!analyser) return;
    if (seen.cut_at === null && document.querySelector(".agent.cut")) since = seen.cut_at = now;
    analyser.getFloatTimeDomainData(samples);
    if (Math.sqrt(samples.reduce((a, s) => a + s * s, 0) / samples.length) > 0.003) since = now;
    if (seen.cut_at !== null && now - seen.cut_at < 2000)
      seen.longest_ms = Math.max(seen.longest_ms, now - since);
  }, 15);
});

async function conversation() {
  await page.focus("#talk");
  await page.keyboard.press("Enter"); // by keyboard alone
  await state("listening", "hearing", "thinking", "speaking");
  saw.connected = true;
  await watchSilence();
  const greeting = agentRms(3500); // a short answer may be cut before it can be measured
  // a quick end of turn leaves them open for less time than a selector's retries are apart
  const open = () => document.querySelector(".caller.open p")?.textContent || null;
  saw.partial = await (await page.waitForFunction(open, undefined, { polling: 20 })).jsonValue();
  await page.waitForSelector(".caller:not(.open) p");
  saw.transcripts = await texts(".caller:not(.open) p");
  await page.waitForFunction(() => {
    const replies = document.querySelectorAll(".caller:not(.open) ~ .agent .heard");
    return [...replies].some((e) => e.textContent.length > 4);
  }, undefined, { polling: 20 });
  saw.agent_rms = Math.max((await agentRms(700)).rms, (await greeting).rms);
  saw.heard_while_speaking = (await texts(".agent .heard")).at(-1);
  saw.meter_out = await page.$eval("#level-out", (e) => Number(e.style.getPropertyValue("--level")));
  await shot("speaking");
  if (o.barge_in !== false) {
    await page.waitForSelector(".agent.cut"); // an answer, or a long greeting
    await page.waitForTimeout(600);
    saw.barge_in = {
      quiet_ms: await page.evaluate(() => window.silence.longest_ms),
      unheard: (await texts(".agent.cut .rest")).at(-1), heard: (await texts(".agent.cut .heard")).at(-1),
    };
  }
  await page.waitForSelector(".trace");
  saw.trace = await page.$eval(".trace summary", (e) => e.textContent);
  await page.$eval(".trace", (e) => { e.open = true; });
  saw.trace_rows = await page.$$eval(".trace", (all) => all[0].querySelectorAll("tr").length);
  await page.waitForTimeout(400);
  await shot("conversation");
  saw.axe = await faults(); // with a conversation on it
  saw.live_region = await page.textContent("#spoken");
  await page.keyboard.press("Escape");
  await state("ended");
  saw.ended = await status();
  saw.microphone_released = await page.evaluate(() => document.querySelector("#voice").srcObject === null);
}

const scenes = {
  call: conversation,
  socket: async () => {
    const sockets = [];
    page.on("websocket", (socket) => {
      const one = { url: socket.url(), up: 0, down: 0 };
      sockets.push(one);
      socket.on("framesent", ({ payload }) => { one.up += typeof payload !== "string"; });
      socket.on("framereceived", ({ payload }) => { one.down += typeof payload !== "string"; });
    });
    const bare = (sdp) => sdp.replaceAll(/a=candidate:.*\r\n/g, "");
    await page.route("**/rtc/offer", async (route) => { // neither side learns where the other one is
      const offer = route.request().postDataJSON();
      const response = await route.fetch({ postData: { ...offer, sdp: bare(offer.sdp) } });
      const answer = await response.json();
      await route.fulfill({ response, json: { ...answer, sdp: bare(answer.sdp) } });
    });
    let offers = 0;
    page.on("request", (request) => { offers += request.url().endsWith("/rtc/offer"); });
    await conversation();
    saw.statuses = await page.evaluate(() => window.statuses);
    const first = offers;
    await page.click("#talk"); // the next call of this page view
    await state("listening", "hearing", "thinking", "speaking");
    saw.offers = { first, second: offers - first };
    saw.sockets = sockets;
    await page.click("#mute");
    saw.muted = await page.getAttribute("#mute", "aria-pressed");
    await page.fill("#write", "When do you open?");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => [...document.querySelectorAll(".agent .heard")].at(-1)?.textContent.length > 4);
    while (sockets.at(-1).up <= 10) await page.waitForTimeout(50);
    await page.click("#talk");
    await state("ended");
  },
  door: async () => {
    await page.waitForSelector("#key-form:not([hidden])");
    await page.fill("#key", o.key);
    await page.keyboard.press("Enter");
    await page.waitForSelector("#key-form", { state: "hidden" });
    await page.click("#talk");
    await state("listening", "hearing", "thinking", "speaking");
    await page.click("#talk");
    await state("ended");
    await page.click("#talk");
    await page.waitForSelector("#notice:not([hidden])");
    saw.notice = await page.textContent("#notice");
    await shot("door");
  },
  idle: async () => {
    saw.status = await status();
    saw.language = await page.evaluate(() => document.documentElement.lang);
    await shot(o.locale ? `idle-${o.locale}` : "idle");
  },
  full: async () => {
    await page.click("#talk");
    await page.waitForSelector("#notice:not([hidden])");
    saw.notice = await page.textContent("#notice");
    await shot("full");
  },
  queue: async () => {
    await page.click("#talk");
    await page.waitForFunction(() => /number/.test(document.querySelector("#notice-text").textContent));
    saw.notice = await page.textContent("#notice");
    await state("listening", "hearing", "speaking");
    saw.connected = true;
    await page.click("#talk");
    await state("ended");
  },
  key: async () => {
    await page.waitForSelector("#key-form:not([hidden])");
    await shot("key");
    await page.fill("#key", "a wrong key of some length");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#key-hint").textContent.includes("not known"));
    await page.fill("#key", o.key);
    await page.keyboard.press("Enter");
    await page.waitForSelector("#key-form", { state: "hidden" });
    await page.click("#talk");
    await state("listening", "hearing", "thinking", "speaking");
    saw.connected = true;
  },
  behind: async () => {
    await page.click("#talk");
    await state("listening", "hearing", "thinking", "speaking");
    saw.connected = true;
    await page.waitForTimeout(1500); // some reports
  },
  insecure: async () => {
    await page.waitForSelector("#notice:not([hidden])");
    saw.notice = await page.textContent("#notice");
    await shot("insecure");
  },
  denied: async () => {
    await page.click("#talk");
    await page.waitForSelector("#notice:not([hidden])");
    saw.notice = await page.textContent("#notice");
    await shot("denied");
  },
  sound: async () => {
    saw.words = await page.textContent("#mute");
    await page.click("#talk");
    await state("listening", "hearing", "thinking", "speaking");
    const live = () => page.evaluate(() => window.sent.filter((m) => m.type === "mute").map((m) => m.on));
    const enabled = () => page.evaluate(() => window.track.enabled);
    await page.click("#mute");
    saw.status_muted = await status();
    saw.muted = { told: await live(), enabled: await enabled(), pressed: await page.getAttribute("#mute", "aria-pressed") };
    await page.click("#mute");
    saw.unmuted = { told: await live(), enabled: await enabled() };
    await page.click("#sound summary");
    await page.check("#push");
    saw.push = { told: await live(), enabled: await enabled() };
    await page.focus("#talk"); // where the focus is after a click: it must not hang up
    await page.keyboard.down("Space");
    saw.held = { told: await live(), enabled: await enabled() };
    await page.keyboard.up("Space");
    saw.released = { told: await live(), enabled: await enabled() };
    await page.$eval("#volume", (e) => { e.value = 40; e.dispatchEvent(new Event("input")); });
    saw.volume = await page.$eval("#voice", (e) => e.volume);
    saw.microphones = await texts("#microphone option");
    const before = await page.evaluateHandle(() => window.track);
    await page.selectOption("#microphone", { index: 1 });
    await page.waitForFunction((old) => window.track !== old, before);
    saw.other_microphone = { enabled: await enabled() };
    await shot("sound");
    saw.axe = await faults();
    await page.uncheck("#push");
    await page.fill("#write", "When do you open?");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelectorAll(".agent").length > 0);
    saw.typed = await texts(".caller p");
    saw.space_is_typed = await (async () => {
      await page.focus("#write");
      await page.keyboard.type("a b");
      return page.inputValue("#write");
    })();
    await page.reload();
    saw.remembered = await page.$eval("#volume", (e) => e.value);
  },
  ops: async () => {
    await page.waitForSelector("#calls tr");
    saw.calls = await texts("#calls td:first-child");
    saw.lines = await texts("#calls td:nth-child(4)");
    await page.waitForSelector("#places tr");
    saw.queue = await texts("#places td");
    saw.figures = await page.textContent("#figures");
    saw.stages = await texts("#stages h3");
    await shot("ops");
    saw.axe = await faults();
    await page.focus("#calls button");
    await page.waitForTimeout(2500); // the view was drawn anew
    saw.focus_kept = await page.evaluate(() => document.activeElement.textContent);
    await page.keyboard.press("Enter");
    await page.waitForSelector("#nobody:not([hidden])");
    saw.hung_up = true;
  },
  "ops-key": async () => {
    await page.waitForSelector("#key-form:not([hidden])");
    await shot("ops-key");
    saw.shown = await page.isVisible("#view");
    await page.fill("#key", "a wrong key of some length");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#key-hint").textContent.includes("not known"));
    await page.fill("#key", o.key);
    await page.keyboard.press("Enter");
    await page.waitForSelector("#figures div");
  },
  resume: async () => {
    let left = o.fails || 0;
    await page.route("**/rtc/resume", (route) => (left-- > 0 ? route.abort() : route.continue()));
    await page.click("#talk");
    const heard = async () => (await texts(".agent .heard")).at(-1);
    const hears = (n) => page.waitForFunction(
      (chars) => [...document.querySelectorAll(".agent .heard")].at(-1)?.textContent.length > chars, n);
    const write = async (text) => {
      const n = (await texts(".agent")).length;
      await page.fill("#write", text);
      await page.keyboard.press("Enter");
      await page.waitForFunction((before) => document.querySelectorAll(".agent").length > before, n);
    };
    if (o.write) {
      await hears(8); // the greeting
      await write(o.write);
    }
    await hears(20);
    if (o.kill) process.kill(o.kill, "SIGKILL");
    const calm = saw.console_errors.length;
    await state("resuming");
    saw.heard_before = await heard();
    saw.replies_before = (await texts(".agent")).length;
    await shot("resuming");
    saw.axe = await faults();
    await state("listening", "hearing", "thinking", "speaking");
    saw.console_errors.length = calm; // of attempts that were made to fail
    saw.agent_rms = (await agentRms(1500)).rms;
    await hears(saw.heard_before.length + 20);
    saw.heard_after = await heard();
    saw.replies = (await texts(".agent")).length;
    saw.cut = (await texts(".agent.cut")).length;
    saw.statuses = await page.evaluate(() => window.statuses);
    if (o.write) {
      await write("Thank you. Goodbye.");
      await hears(2);
      saw.answered = await heard();
    }
    await page.click("#talk");
    await state("ended");
    saw.ended = await status();
  },
  line: async () => {
    await page.click("#talk");
    await state("listening", "hearing", "thinking", "speaking");
    await page.waitForTimeout(1000 * o.learn_s);
    const counts = () => page.evaluate(async () => {
      for (const stat of (await window.connection.getStats()).values()) {
        if (stat.type === "inbound-rtp" && stat.kind === "audio") return stat;
      }
      return null;
    });
    const before = await counts();
    await page.waitForTimeout(1000 * o.seconds);
    const after = await counts();
    saw.line = Object.fromEntries(Object.entries(after)
      .filter(([name, value]) => typeof value === "number" && typeof before[name] === "number")
      .map(([name, value]) => [name, value - before[name]]));
    await page.click("#talk");
    await state("ended");
  },
  "resume-late": async () => {
    await page.route("**/rtc/resume", (route) => route.abort());
    await page.click("#talk");
    await state("resuming");
    await page.waitForSelector("#notice:not([hidden])");
    saw.notice = await page.textContent("#notice");
    saw.statuses = await page.evaluate(() => window.statuses);
    saw.microphone_released = await page.evaluate(() => document.querySelector("#voice").srcObject === null);
    await shot("resume-late");
    saw.console_errors.length = 0; // of attempts that were made to fail
  },
  lost: async () => {
    await page.route("**/rtc/offer", (route) => route.abort());
    await page.click("#talk");
    await page.waitForSelector("#notice:not([hidden])");
    saw.notice = await page.textContent("#notice");
    await shot("lost");
    await page.unroute("**/rtc/offer");
    await state("listening", "hearing", "thinking", "speaking");
    saw.connected = true;
  },
};

try {
  if (o.scene === "insecure") {
    await page.addInitScript(() => Object.defineProperty(window, "isSecureContext", { value: false }));
  }
  if (["socket", "door", "resume", "resume-late"].includes(o.scene)) {
    await page.addInitScript((webrtc) => {
      if (webrtc === "missing") delete window.RTCPeerConnection;
      window.statuses = [];
      document.addEventListener("DOMContentLoaded", () => {
        const line = document.querySelector("#status");
        new MutationObserver(() => window.statuses.push(line.textContent)).observe(line, { childList: true });
      });
    }, o.webrtc);
  }
  if (o.scene === "line") {
    await page.addInitScript(() => {
      const Connection = window.RTCPeerConnection;
      window.RTCPeerConnection = class extends Connection {
        constructor(...given) {
          super(...given);
          window.connection = this;
        }
      };
    });
  }
  if (o.scene === "sound") {
    await page.addInitScript(() => { // what leaves: messages to the server, and the microphone in use
      window.sent = [];
      const send = RTCDataChannel.prototype.send;
      RTCDataChannel.prototype.send = function (text) { window.sent.push(JSON.parse(text)); send.call(this, text); };
      const get = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
      navigator.mediaDevices.getUserMedia = async (wanted) => {
        const stream = await get(wanted);
        [window.track] = stream.getAudioTracks();
        return stream;
      };
    });
  }
  await page.goto(o.url);
  await page.waitForLoadState("networkidle");
  await scenes[o.scene]();
  saw.axe ??= await faults();
  saw.overflow_px = await page.evaluate(
    () => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  saw.requests_elsewhere = await page.evaluate((origin) => performance.getEntriesByType("resource")
    .map((e) => e.name).filter((name) => !name.startsWith(origin)), new URL(o.url).origin);
} catch (error) {
  saw.failure = String(error.message).split("\n")[0];
  saw.state = await page.evaluate(() => document.body.dataset.state).catch(() => null);
  saw.page = await page.textContent("main").catch(() => null);
  await shot("failure").catch(() => null);
} finally {
  await browser.close();
}
console.log(JSON.stringify(saw));
