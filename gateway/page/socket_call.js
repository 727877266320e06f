// One call over a WebSocket, for where WebRTC can't connect: texts as on the data channel, sound as
// binary messages that an audio worklet makes and plays.

import { Call, CallError, refusal } from "./call.js";
import { Playback } from "./playback.js";

const CONNECT_MS = 10000;
const STUCK_BYTES = 128000; // four seconds of the caller's sound that can't leave
const CLOSE_LEFT = 1000;
const CLOSE_FULL = 1013;
const CLOSE_MOVING = 4000; // ours: another line will go on with the call
const CLOSE_GONE = 4410; // there is no call to go on with
const CUT = ["interrupted", "cancelled"];

export class SocketCall extends Call {
  async start(agent, pass, device) {
    await this.open(device);
    if (this.closed) return this.release();
    this.timer = setTimeout(() => this.close(silent()), CONNECT_MS);
    await this.prepare();
    if (this.closed) return this.release();
    const { ticket } = this;
    const socket = (this.socket = this.back
      ? new WebSocket(address("rtc/resume", { seen: this.back.seen }), protocols(PASS, this.token))
      : new WebSocket(address("rtc/socket", { agent, ticket }), protocols(KEY, token(pass))));
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.receive(JSON.parse(data));
      else this.line.port.postMessage(data, [data]);
    };
    socket.onclose = (event) => this.gone(event, pass);
  }

  // The line between microphone, socket and loudspeaker.
  async prepare() {
    const context = (this.context = new AudioContext());
    if (!context.audioWorklet) {
      throw new CallError("refused", "This browser has neither WebRTC nor audio worklets.");
    }
    await context.audioWorklet.addModule("worklet.js");
    if (this.closed) return;
    await context.resume();
    const line = (this.line = new AudioWorkletNode(context, "line", {
      channelCount: 1, channelCountMode: "explicit", outputChannelCount: [1],
    }));
    this.delay = [0, 0];
    line.port.onmessage = ({ data }) => {
      this.delay = [data.waited_s, data.arrived];
      this.say(data.pcm);
    };
    const speaker = context.createMediaStreamDestination();
    line.connect(speaker);
    this.plug();
    this.playback = new Playback(
      async () => ({ buffer: this.delay }), (message) => this.send(message), this.on.outputLatency,
    );
    this.on.output(speaker.stream);
  }

  plug() {
    this.source?.disconnect();
    this.source = this.context.createMediaStreamSource(this.stream);
    this.source.connect(this.line);
  }

  async listenTo(device) {
    await this.open(device);
    if (this.closed) return this.release();
    this.plug();
  }

  say(pcm) {
    if (!this.live || this.closed) return;
    if (this.socket.bufferedAmount > STUCK_BYTES) this.close(new CallError("lost", ""));
    else if (this.socket.readyState === WebSocket.OPEN) this.socket.send(pcm);
  }

  receive(data) {
    if (this.closed) return;
    const first = this.back ? "line" : "started";
    if (data.type === "done" && CUT.includes(data.status)) this.line.port.postMessage(null);
    if (data.type === "line" && "gap_ms" in data) this.line.port.postMessage(null); // said again
    if (data.type === "ended") this.ended = true;
    super.receive(data);
    if (data.type === first) this.connected();
  }

  connected() {
    if (!this.live) this.tellMute();
    super.connected();
  }

  async gone({ code, reason }, pass) {
    if (this.ended) return; // the last words are still playing
    if (this.live) this.close(new CallError("lost", ""));
    else if (code === CLOSE_GONE) this.close(new CallError("gone", reason));
    else if (code === CLOSE_FULL) this.close(new CallError("full", reason, 10));
    else this.close(reason ? new CallError("refused", reason) : await whyNot(this.socket.url, pass));
  }

  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }

  release(back = null) {
    super.release(back);
    if (this.socket) {
      this.socket.onclose = this.socket.onmessage = null;
      this.socket.close(back ? CLOSE_MOVING : CLOSE_LEFT); // without a code it would count as broken
    }
    if (this.line) this.line.port.onmessage = null;
    if (this.context?.state !== "closed") this.context?.close();
  }
}

function address(path, query) {
  const url = new URL(path, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
  return url;
}

// A browser can't send headers here: what opens the door is offered as a sub-protocol, and not
// taken.
const KEY = "openai-insecure-api-key.";
const PASS = "voice-agent-resume.";

function protocols(kind, secret) {
  return ["voice-agent", ...(secret ? [kind + secret] : [])];
}

function token(pass) {
  return pass.authorization?.slice("Bearer ".length);
}

// A browser doesn't say why a handshake failed: a plain request knocks at the same door.
async function whyNot(url, pass) {
  let response;
  try {
    response = await fetch(url.replace("ws", "http"), { headers: pass });
  } catch {
    return silent();
  }
  // there is nothing but a socket: whoever gets so far was let in
  return [404, 405].includes(response.status) ? new CallError("no-socket", "") : refusal(response);
}

function silent() {
  return new CallError("unreachable", "The server does not answer.");
}
