// `@openai/agents-realtime` over WebSocket: a spoken question answered, a barge-in, a tool's round trip,
// a typed message, history put back. Prints one JSON object of what it saw.
//
//   node agents_ws.mjs '{"url": "ws://...", "key": ..., "question": RAW, "second": RAW}'
//
// question, second: files of 24 kHz 16-bit PCM.

import { readFileSync } from "node:fs";
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession, tool } from "@openai/agents-realtime";
import { z } from "zod";

const o = JSON.parse(process.argv[2]);
const FRAME = 960; // bytes of 20 ms
const saw = { errors: [], asked: [], events: {} };

const look = tool({
  name: "look_up_opening_hours",
  description: "Looks up when a museum opens.",
  parameters: z.object({ museum: z.string() }),
  execute: async ({ museum }) => { saw.asked.push(museum); return "It opens at ten."; },
});
const agent = new RealtimeAgent({
  name: "guide", instructions: "You are a friendly phone agent. Answer in one short sentence.", tools: [look],
});
const transport = new OpenAIRealtimeWebSocket({ url: o.url, useInsecureApiKey: true });
const session = new RealtimeSession(agent, { transport, tracingDisabled: o.noTracing });
let heardBytes = 0, interruptions = 0;
session.on("audio", (event) => { heardBytes += event.data.byteLength; });
session.on("audio_interrupted", () => { interruptions += 1; });
session.on("error", (e) => saw.errors.push(JSON.stringify(e.error?.error ?? e.error ?? String(e)).slice(0, 500)));
const waiting = [];
const seen = [];
session.transport.on("*", (event) => {
  saw.events[event.type] = (saw.events[event.type] || 0) + 1;
  seen.push(event);
  for (const check of [...waiting]) check(event);
});
const until = (type, n = 1, accept = () => true) => new Promise((resolve, reject) => {
  const timer = setTimeout(() => reject(new Error(`no ${n} ${type}; saw ${JSON.stringify(saw)}`)), o.timeout || 60000);
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

let speech = [];
const say = (file) => {
  const pcm = readFileSync(file);
  for (let at = 0; at + FRAME <= pcm.length; at += FRAME) speech.push(pcm.subarray(at, at + FRAME));
};
const quiet = Buffer.alloc(FRAME);

try {
  await session.connect({ apiKey: o.key });
  const microphone = setInterval(() => {
    const frame = speech.shift() || quiet;
    session.sendAudio(frame.buffer.slice(frame.byteOffset, frame.byteOffset + FRAME));
  }, 20);
  await until("session.updated");
  if (o.greets) await until("response.done");

  let done = count("response.done");
  say(o.question);
  const answer = await until("response.done", done + 1);
  saw.answer = answer.response;
  saw.heard_bytes = heardBytes;

  // a long answer, and the caller speaks into it
  done = count("response.done");
  const created = count("response.created");
  session.sendMessage("Tell me a long story about a lighthouse, please.");
  await until("response.created", created + 1);
  const deltas = count("response.output_audio.delta");
  await until("response.output_audio.delta", deltas + 40);
  say(o.second);
  saw.cut = (await until("response.done", done + 1)).response;
  saw.interruptions = interruptions;
  await until("response.done", done + 2);

  // a tool, which the model is made to call
  if (o.tools) {
    done = count("response.done");
    session.transport.sendEvent({ type: "conversation.item.create", item: {
      type: "message", role: "user", content: [{ type: "input_text", text: "When does the art museum open?" }] } });
    session.transport.sendEvent({ type: "response.create", response: { tool_choice: "required" } });
    await until("response.done", done + 2);
    saw.after_tool = seen.filter((e) => e.type === "response.done").at(-1).response;
  }

  // history is put back: the session deletes and creates items
  const deleted = count("conversation.item.deleted");
  const before = session.history.length;
  session.updateHistory((history) => history.slice(0, 2));
  await until("conversation.item.deleted", deleted + Math.min(1, before - 2));
  saw.history_before = before;

  clearInterval(microphone);
  session.close();
} catch (error) {
  saw.failure = String(error.stack || error);
}
console.log(JSON.stringify(saw));
process.exit(0);
