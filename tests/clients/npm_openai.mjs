// npm's `openai` over wss: a spoken question, text answers, telephone formats, a tool's round trip, a
// response beside the conversation, truncation, cancelling, errors. Prints one JSON object of what it saw.
//
//   node npm_openai.mjs '{"port": ..., "key": ..., "question": RAW}'
//
// question: a file of 24 kHz 16-bit PCM. NODE_EXTRA_CA_CERTS names the server's certificate.

import { readFileSync } from "node:fs";
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const o = JSON.parse(process.argv[2]);
const FRAME = 960; // bytes of 20 ms
const saw = { errors: [], events: {} };
const client = new OpenAI({ apiKey: o.key, baseURL: `https://127.0.0.1:${o.port}/v1` });
const seen = [];
const waiting = [];

try {
  const rt = new OpenAIRealtimeWS({ model: "gpt-realtime" }, client);
  rt.on("error", (e) => saw.errors.push(e.error ?? String(e)));
  rt.on("event", (event) => {
    saw.events[event.type] = (saw.events[event.type] || 0) + 1;
    seen.push(event);
    for (const check of [...waiting]) check();
  });
  const until = (type, n = 1, accept = () => true) => new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ${n} ${type}: ${JSON.stringify(saw)}`)), 40000);
    const check = () => {
      const found = seen.filter((e) => e.type === type && accept(e));
      if (found.length < n) return;
      clearTimeout(timer);
      waiting.splice(waiting.indexOf(check), 1);
      resolve(found[n - 1]);
    };
    waiting.push(check);
    check();
  });
  const count = (type) => saw.events[type] || 0;

  await until("session.created");
  rt.send({ type: "session.update", session: {
    type: "realtime", instructions: "Answer in five words.",
    audio: { output: { format: { type: "audio/pcmu" } } },
    tools: [{ type: "function", name: "look_up_price", description: "Looks up a price.",
      parameters: { type: "object", properties: { item: { enum: ["tea", "cake"] } }, required: ["item"],
        additionalProperties: false } }],
  } });
  saw.updated = (await until("session.updated")).session;
  if (o.greets) await until("response.done");

  const ask = async (text, response) => {
    const done = count("response.done");
    rt.send({ type: "conversation.item.create", item: {
      type: "message", role: "user", content: [{ type: "input_text", text }] } });
    rt.send({ type: "response.create", ...(response ? { response } : {}) });
    return (await until("response.done", done + 1)).response;
  };
  const from = seen.length;
  saw.spoken = await ask("Say hello, please.");
  saw.telephone_bytes = seen.slice(from).filter((e) => e.type === "response.output_audio.delta")
    .reduce((n, e) => n + Buffer.from(e.delta, "base64").length, 0);
  rt.send({ type: "conversation.item.truncate",
    item_id: saw.spoken.output[0].id, content_index: 0, audio_end_ms: 200 });
  saw.truncated = await until("conversation.item.truncated");
  rt.send({ type: "conversation.item.retrieve", item_id: saw.spoken.output[0].id });
  saw.left = (await until("conversation.item.retrieved")).item.content[0].transcript;
  saw.text = await ask("Name a colour.", { output_modalities: ["text"], metadata: { kind: "colour" } });
  saw.called = await ask("What is the price of cake?", { tool_choice: { type: "function", name: "look_up_price" } });
  const call = saw.called.output.find((item) => item.type === "function_call");
  rt.send({ type: "conversation.item.create", item: {
    type: "function_call_output", call_id: call.call_id, output: "Three pounds." } });
  const done = count("response.done");
  rt.send({ type: "response.create", response: { output_modalities: ["text"] } });
  saw.told = (await until("response.done", done + 1)).response;

  const more = count("response.done");
  rt.send({ type: "response.create", response: {
    conversation: "none", output_modalities: ["text"], instructions: "Answer yes or no.",
    input: [{ type: "message", role: "user", content: [{ type: "input_text", text: "Is tea a drink?" }] }] } });
  saw.beside = (await until("response.done", more + 1)).response;

  const audible = count("response.output_audio.delta"), over = count("response.done");
  rt.send({ type: "response.create", response: { tool_choice: "none" } });
  await until("response.output_audio.delta", audible + 1);
  rt.send({ type: "response.cancel" });
  saw.cancelled = (await until("response.done", over + 1)).response;

  rt.send({ type: "session.update", session: { type: "realtime", max_output_tokens: 60 } });
  const speech = readFileSync(o.question);
  let at = 0;
  const microphone = setInterval(() => {
    const frame = at < speech.length ? speech.subarray(at, at + FRAME) : Buffer.alloc(FRAME);
    at += FRAME;
    rt.send({ type: "input_audio_buffer.append", audio: frame.toString("base64") });
  }, 20);
  const before = count("response.done");
  await until("input_audio_buffer.speech_started");
  await until("input_audio_buffer.speech_stopped");
  saw.answered = (await until("response.done", before + 1)).response;
  saw.heard = (await until("conversation.item.input_audio_transcription.completed")).transcript;
  clearInterval(microphone);

  rt.send({ type: "conversation.item.retrieve", item_id: "nothing", event_id: "mine" });
  saw.error = (await until("error")).error;
  const secret = await client.realtime.clientSecrets.create({ session: { type: "realtime" } });
  saw.secret = secret.value.slice(0, 3);
  rt.close();
} catch (error) {
  saw.failure = String(error.stack || error);
}
console.log(JSON.stringify(saw));
process.exit(0);
