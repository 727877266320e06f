// npm's `openai` over wss: text answers, telephone formats, a tool's round trip, a response beside the
// conversation, errors. Prints one JSON object of what it saw.
//
//   node npm_openai.mjs '{"port": ..., "key": ...}'     (NODE_EXTRA_CA_CERTS names the certificate)

import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const o = JSON.parse(process.argv[2]);
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
