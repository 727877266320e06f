// Runs the page's audio worklet without a browser; prints what it made, as one JSON object.
//
//   node worklet.mjs WORKLET_JS '{"rate": 48000}'

import { pathToFileURL } from "node:url";

const { rate } = JSON.parse(process.argv[3]);
const BLOCK = 128;
let Line = null;
globalThis.sampleRate = rate;
globalThis.AudioWorkletProcessor = class {
  constructor() {
    this.port = { postMessage: (data) => this.out?.push(data) };
  }
};
globalThis.registerProcessor = (name, made) => { Line = made; };
await import(pathToFileURL(process.argv[2]));

const line = new Line();
line.out = [];
const tone = (n, hz, of, level) => Float32Array.from(
  { length: n }, (_, i) => level * Math.sin((2 * Math.PI * hz * i) / of));

// a second of the microphone
const said = tone(rate, 1000, rate, 0.5);
const block = () => [new Float32Array(BLOCK)];
for (let at = 0; at + BLOCK <= rate; at += BLOCK) {
  line.process([[said.subarray(at, at + BLOCK)]], [block()]);
}
const heard = line.out.flatMap((message) => [...new Int16Array(message.pcm)]);
const frames = line.out.map((message) => new Int16Array(message.pcm).length);

// ten frames of 20 ms to play, then what comes out
const voice = Int16Array.from(tone(4800, 500, 24000, 16000));
for (let at = 0; at < 4800; at += 480) line.port.onmessage({ data: voice.slice(at, at + 480).buffer });
const waited = { waited_s: line.waitedS, arrived: line.arrived };
const played = [];
const play = (ms) => {
  for (let n = 0; n < (ms * rate) / 1000; n += BLOCK) {
    const [speaker] = block();
    line.process([[]], [[speaker]]);
    played.push(...speaker);
  }
};
play(300);

// the same again, cut in the middle
for (let at = 0; at < 4800; at += 480) line.port.onmessage({ data: voice.slice(at, at + 480).buffer });
const cut = [];
const [before] = block();
line.process([[]], [[before]]);
cut.push(...before);
line.port.onmessage({ data: null });
for (let n = 0; n < 12; n++) {
  const [speaker] = block();
  line.process([[]], [[speaker]]);
  cut.push(...speaker);
}
const messages = line.out.length;
for (let n = 0; n < 30; n++) line.port.onmessage({ data: new Int16Array(24000).buffer });
console.log(JSON.stringify({
  heard, frames, waited, played, cut, messages, longest_s: line.waiting / rate,
}));
