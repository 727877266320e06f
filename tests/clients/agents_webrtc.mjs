// `@openai/agents-realtime` over WebRTC in headless Chromium: a spoken question answered aloud, the agent cut
// by the client, a tool's round trip, a further connection by the call's id, hang-up. Prints one JSON object.
//
//   node agents_webrtc.mjs '{"page": ..., "url": ..., "key": ..., "chromium": ..., "wav": ...}'

import { chromium } from "playwright-core";
import WebSocket from "ws";

const o = { timeout: 90000, ...JSON.parse(process.argv[2]) };
const saw = { errors: [] };
const browser = await chromium.launch({
  executablePath: o.chromium, headless: true,
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream", "--autoplay-policy=no-user-gesture-required",
    "--allow-loopback-in-peer-connection", `--use-file-for-fake-audio-capture=${o.wav}%noloop`,
  ],
});
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(o.timeout);
  page.on("pageerror", (error) => saw.errors.push(String(error)));
  page.on("requestfailed", (r) => saw.errors.push(`${r.url()}: ${r.failure()?.errorText}`));
  const until = async (type, n = 1) => {
    await page.waitForFunction(
      ([t, k]) => window.seen.filter((e) => e.type === t).length >= k, [type, n], { polling: 50 });
    return page.evaluate(([t, k]) => window.seen.filter((e) => e.type === t)[k - 1], [type, n]);
  };
  const count = (type) => page.evaluate((t) => window.seen.filter((e) => e.type === t).length, type);

  await page.goto(o.page);
  await page.waitForFunction(() => window.start);
  await page.evaluate(([url, key, insecure]) => window.start(url, key, insecure), [o.url, o.key, !o.key.startsWith("ek_")]);
  saw.call_id = await page.evaluate(() => window.transport.callId);
  saw.updated = (await until("session.updated")).session;

  // the question is in the microphone's recording; a greeting of the agent's may come before
  saw.transcript = (await until("conversation.item.input_audio_transcription.completed")).transcript;
  saw.loudest = await page.evaluate(async () => {
    const context = new AudioContext();
    await context.resume();
    const analyser = context.createAnalyser();
    context.createMediaStreamSource(window.voice.srcObject).connect(analyser);
    const samples = new Float32Array(2048);
    let loudest = 0;
    const end = performance.now() + 60000;
    while (performance.now() < end && loudest < 0.05) {
      await new Promise((r) => setTimeout(r, 20));
      analyser.getFloatTimeDomainData(samples);
      for (const s of samples) loudest = Math.max(loudest, Math.abs(s));
    }
    return loudest;
  });
  await until("output_audio_buffer.stopped");

  // the client cuts a long answer
  let started = await count("output_audio_buffer.started");
  await page.evaluate(() => window.session.sendMessage("Tell me a long story about a lighthouse, please."));
  await until("output_audio_buffer.started", started + 1);
  await page.waitForTimeout(800);
  await page.evaluate(() => window.session.interrupt());
  saw.cleared = await until("output_audio_buffer.cleared");
  saw.truncated = await until("conversation.item.truncated");
  saw.cut = await page.evaluate(() => window.seen.filter((e) => e.type === "response.done").at(-1).response);

  // another program on the same call makes the model call the page's tool
  const side = new WebSocket(`${o.side}?call_id=${saw.call_id}`, { headers: { Authorization: `Bearer ${o.key}` } });
  const side_saw = [];
  side.on("message", (text) => side_saw.push(JSON.parse(text)));
  await new Promise((resolve, reject) => { side.on("open", resolve); side.on("error", reject); });
  const send = (event) => side.send(JSON.stringify(event));
  let done = await count("response.done");
  send({ type: "conversation.item.create", item: { type: "message", role: "user",
    content: [{ type: "input_text", text: "When does the art museum open?" }] } });
  send({ type: "response.create", response: { tool_choice: "required" } });
  await until("response.done", done + 2);
  saw.asked = await page.evaluate(() => window.asked);
  saw.after_tool = await page.evaluate(() => window.seen.filter((e) => e.type === "response.done").at(-1).response);
  saw.side = [...new Set(side_saw.map((e) => e.type))];

  saw.client_errors = await page.evaluate(() => window.seen.filter((e) => e.type === "client error" || e.type === "error"));

  // the data channel ends without a goodbye, which the client calls an error
  const response = await fetch(`${o.url}/${saw.call_id}/hangup`, {
    method: "POST", headers: { Authorization: `Bearer ${o.key}` } });
  saw.hangup = response.status;
  await page.waitForFunction(() => window.transport.status === "disconnected", null, { timeout: 30000 })
    .then(() => { saw.disconnected = true; }, () => { saw.disconnected = false; });
} catch (error) {
  saw.failure = String(error.stack || error);
} finally {
  await browser.close();
  console.log(JSON.stringify(saw));
}
