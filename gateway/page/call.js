// One call over WebRTC: microphone out, voice in, events on the data channel "events".

import { Playback, delaysOf } from "./playback.js";

export class CallError extends Error {
  // kind: insecure | no-microphone | microphone-denied | microphone-busy | key | full | refused |
  //       later (too many requests) | unreachable | no-media (WebRTC can't connect) | no-socket |
  //       lost | gone (no call to come back to)
  constructor(kind, message, retryAfter = 0) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;
  }
}

const CONNECT_MS = 10000;
const ANSWER_MS = 10000;
const RESUME_CONNECT_MS = 6000;
const RESUME_ANSWER_MS = 3000; // over a network that is just gone no answer comes, and no error either
const LOST_MS = 4000;
const MOVE_MS = 1000; // a call that is kept moves to another line rather than wait for this one
// After these another attempt may succeed.
const PASSING = ["lost", "unreachable", "no-media", "no-socket", "full", "later"];
const TAIL_MS = 450;

async function microphone(device) {
  if (!window.isSecureContext || !navigator.mediaDevices) {
    throw new CallError("insecure", "");
  }
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: {
        echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1,
        ...(device && { deviceId: { exact: device } }),
      },
    });
  } catch (error) {
    const kinds = {
      NotAllowedError: "microphone-denied", SecurityError: "microphone-denied",
      NotFoundError: "no-microphone", OverconstrainedError: "no-microphone",
      NotReadableError: "microphone-busy", AbortError: "microphone-busy",
    };
    throw new CallError(kinds[error.name] || "no-microphone", error.message);
  }
}

async function exchange(path, offer, pass, signal) {
  const headers = { "content-type": "application/json", ...pass };
  let response;
  try {
    response = await fetch(path, { method: "POST", headers, body: JSON.stringify(offer), signal });
  } catch {
    throw new CallError("unreachable", "The server does not answer.");
  }
  if (response.ok) return response.json();
  throw await refusal(response);
}

const KINDS = { 401: "key", 410: "gone", 429: "later", 503: "full" };

// What an answer that is none of the wanted ones says.
export async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const message = body.error?.message || `The server answered ${response.status}.`;
  const wait = Number(response.headers.get("retry-after")) || 10;
  return new CallError(KINDS[response.status] || "refused", message, wait);
}

// STUN and TURN servers by which the server may be reached; none of them is needed on one network.
async function iceServers(pass) {
  const response = await fetch("rtc/servers", { headers: pass }).catch(() => null);
  return response?.ok ? (await response.json()).iceServers : [];
}

// Hangs up a call that has no line to say it over, or may not have one for long enough.
export function leave(token) {
  const body = JSON.stringify({ type: "hangup", resume: token });
  navigator.sendBeacon("rtc/resume", new Blob([body], { type: "application/json" }));
}

export class Call {
  // on: {event(data), input(stream), output(stream), connected(), closed(errorOrNull, backOrNull),
  //      outputLatency() -> s}
  // back: of a call that lost its line, as `closed` gave it: {token, seen, silentMs, until, stream,
  //       servers}; its place is taken
  constructor(on, back = null) {
    this.on = on;
    this.back = back;
    this.token = back?.token; // opens this call again, once
    this.seen = back?.seen || 0; // texts of the server's
    this.live = false; // it was connected
    this.closed = false;
    this.muted = false;
    this.ticket = ""; // of the queue, if one had to wait
    this.asking = new AbortController(); // of the offer
  }

  // device: a microphone's id; "": the system's choice.
  async start(agent, pass, device) {
    if (!window.RTCPeerConnection) throw new CallError("no-media", "");
    await this.open(device);
    if (this.closed) return this.release();
    this.servers = this.back?.servers || await iceServers(pass);
    if (this.closed) return this.release();
    const pc = (this.pc = new RTCPeerConnection({ iceServers: this.servers }));
    this.channel = pc.createDataChannel("events");
    this.channel.onopen = () => this.tellMute();
    this.channel.onmessage = (message) => this.receive(JSON.parse(message.data));
    this.playback = new Playback(
      () => delaysOf(pc), (message) => this.send(message), this.on.outputLatency,
      () => this.token && this.close(new CallError("lost", "")),
    );
    this.sender = pc.addTrack(this.stream.getAudioTracks()[0], this.stream);
    pc.ontrack = (event) => this.on.output(event.streams[0] || new MediaStream([event.track]));
    pc.onconnectionstatechange = () => this.watch();
    try {
      await pc.setLocalDescription(await pc.createOffer());
      await this.gathered();
      this.giveUp("unreachable", this.back ? RESUME_ANSWER_MS : ANSWER_MS);
      const answer = await this.ask(pc.localDescription, agent, pass);
      this.keep(answer);
      if (this.closed) return;
      this.giveUp("no-media", this.back ? RESUME_CONNECT_MS : CONNECT_MS);
      await pc.setRemoteDescription({ type: answer.type, sdp: answer.sdp });
    } catch (error) {
      this.close(error instanceof CallError ? error : new CallError("refused", error.message));
    }
  }

  // After so long, unless it is connected.
  giveUp(kind, ms) {
    if (this.closed) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.close(new CallError(kind, "")), ms);
  }

  ask({ type, sdp }, agent, pass) {
    const { back, asking: { signal } } = this;
    if (!back) {
      const place = this.ticket && `?${new URLSearchParams({ ticket: this.ticket })}`;
      return exchange(`rtc/offer${place}`, { type, sdp, agent: agent || undefined }, pass, signal);
    }
    const silent = Math.round(back.silentMs);
    const body = { type, sdp, resume: back.token, seen: back.seen, silent_ms: silent };
    return exchange("rtc/resume", body, {}, signal);
  }

  // What opens the call again, and how long it waits without a line.
  keep({ resume, hold_s: seconds }) {
    if (!resume) return;
    this.token = resume;
    this.holdMs = 1000 * seconds;
  }

  async open(device) {
    const kept = this.back?.stream;
    if (kept) this.back.stream = null;
    const stream = kept?.active ? kept : await microphone(device);
    for (const track of this.stream?.getTracks() || []) {
      track.onended = null;
      track.stop();
    }
    this.stream = stream;
    const [track] = stream.getAudioTracks();
    track.enabled = !this.muted;
    track.onended = () => this.close(new CallError("no-microphone", ""));
    this.on.input(stream);
  }

  // Another microphone in the middle of the call.
  async listenTo(device) {
    await this.open(device);
    if (this.closed) return this.release();
    await this.sender?.replaceTrack(this.stream.getAudioTracks()[0]);
  }

  // The server is told too: what was just being said is a turn then, and silence is not waited for.
  mute(on) {
    if (this.muted === on) return;
    this.muted = on;
    for (const track of this.stream?.getAudioTracks() || []) track.enabled = !on;
    this.send({ type: "mute", on });
  }

  // On a new line: of a call that goes on, the button may have been pressed meanwhile.
  tellMute() {
    if (this.muted || this.back) this.send({ type: "mute", on: this.muted });
  }

  write(text) {
    return this.send({ type: "text", text });
  }

  gathered() {
    if (this.pc.iceGatheringState === "complete") return Promise.resolve();
    return new Promise((done) => {
      const finish = () => this.pc.iceGatheringState === "complete" && done();
      this.pc.addEventListener("icegatheringstatechange", finish);
      setTimeout(done, 2000);
    });
  }

  watch() {
    const state = this.pc.connectionState;
    if (state === "connected") {
      this.connected();
    } else if (state === "disconnected") {
      clearTimeout(this.timer);
      const patience = this.token ? MOVE_MS : LOST_MS;
      this.timer = setTimeout(() => this.close(new CallError("lost", "")), patience);
    } else if (state === "failed" || state === "closed") {
      this.close(new CallError(this.live ? "lost" : "no-media", ""));
    }
  }

  connected() {
    clearTimeout(this.timer);
    if (this.live) return;
    this.live = true;
    this.playback.start();
    this.on.connected();
  }

  receive(data) {
    if (this.closed) return;
    if (data.type === "line") return this.keep(data);
    this.seen += 1;
    this.on.event(data);
    if (data.type === "ended") {
      clearTimeout(this.timer);
      // the last words are still playing
      this.timer = setTimeout(() => this.close(null), TAIL_MS + this.playback.behindMs);
    }
  }

  send(message) {
    if (this.channel?.readyState !== "open") return false;
    this.channel.send(JSON.stringify(message));
    return true;
  }

  hangUp() {
    if (this.send({ type: "hangup" })) {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.close(null), 150); // let it leave
    } else {
      if (this.token) leave(this.token);
      this.close(null);
    }
  }

  close(error) {
    if (this.closed) return;
    this.closed = true;
    clearTimeout(this.timer);
    const back = this.kept(error);
    this.release(back);
    this.on.closed(error, back);
  }

  // What another line needs to go on with the call; null: it does not outlive this one.
  kept(error) {
    if (!this.token || !(this.live || this.back) || !PASSING.includes(error?.kind)) return null;
    const { token, seen, servers } = this;
    const stream = this.stream || this.back?.stream;
    const lost = { silentMs: this.playback?.silentMs || 0, until: performance.now() + this.holdMs };
    return { ...(this.live ? lost : this.back), token, seen, servers, stream };
  }

  release(back = null) {
    this.asking.abort();
    this.playback?.stop();
    for (const track of this.stream?.getTracks() || []) {
      track.onended = null;
      if (!back) track.stop();
    }
    if (this.pc) {
      this.pc.onconnectionstatechange = null;
      this.pc.close();
    }
  }
}
