// One call over WebRTC: microphone out, voice in, events on the data channel "events".

import { Playback, delaysOf } from "./playback.js";

export class CallError extends Error {
  // kind: insecure | no-microphone | microphone-denied | microphone-busy | key | full | refused |
  //       unreachable | no-media (WebRTC can't connect) | lost
  constructor(kind, message, retryAfter = 0) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;
  }
}

const CONNECT_MS = 10000;
const LOST_MS = 4000;
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

async function exchange(offer, agent, pass) {
  const headers = { "content-type": "application/json", ...pass };
  let response;
  try {
    response = await fetch("rtc/offer", {
      method: "POST",
      headers,
      body: JSON.stringify({ type: offer.type, sdp: offer.sdp, agent: agent || undefined }),
    });
  } catch {
    throw new CallError("unreachable", "The server does not answer.");
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  const message = body.error?.message || `The server answered ${response.status}.`;
  if (response.status === 401) throw new CallError("key", message);
  if (response.status === 503) {
    throw new CallError("full", message, Number(response.headers.get("retry-after")) || 10);
  }
  throw new CallError("refused", message);
}

// STUN and TURN servers by which the server may be reached; none of them is needed on one network.
async function iceServers(pass) {
  const response = await fetch("rtc/servers", { headers: pass }).catch(() => null);
  return response?.ok ? (await response.json()).iceServers : [];
}

export class Call {
  // on: {event(data), input(stream), output(stream), connected(), closed(errorOrNull),
  //      outputLatency() -> s}
  constructor(on) {
    this.on = on;
    this.live = false; // it was connected
    this.closed = false;
    this.muted = false;
  }

  // device: a microphone's id; "": the system's choice.
  async start(agent, pass, device) {
    if (!window.RTCPeerConnection) throw new CallError("no-media", "");
    await this.open(device);
    if (this.closed) return this.release();
    const servers = await iceServers(pass);
    if (this.closed) return this.release();
    const pc = (this.pc = new RTCPeerConnection({ iceServers: servers }));
    this.channel = pc.createDataChannel("events");
    this.channel.onmessage = (message) => this.receive(JSON.parse(message.data));
    this.playback = new Playback(
      () => delaysOf(pc), (message) => this.send(message), this.on.outputLatency,
    );
    this.sender = pc.addTrack(this.stream.getAudioTracks()[0], this.stream);
    pc.ontrack = (event) => this.on.output(event.streams[0] || new MediaStream([event.track]));
    pc.onconnectionstatechange = () => this.watch();
    this.timer = setTimeout(() => this.close(new CallError("no-media", "")), CONNECT_MS);
    try {
      await pc.setLocalDescription(await pc.createOffer());
      await this.gathered();
      const answer = await exchange(pc.localDescription, agent, pass);
      if (this.closed) return;
      await pc.setRemoteDescription(answer);
    } catch (error) {
      this.close(error instanceof CallError ? error : new CallError("refused", error.message));
    }
  }

  async open(device) {
    const stream = await microphone(device);
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
      this.timer = setTimeout(() => this.close(new CallError("lost", "")), LOST_MS);
    } else if (state === "failed" || state === "closed") {
      this.close(new CallError(this.live ? "lost" : "no-media", ""));
    }
  }

  connected() {
    clearTimeout(this.timer);
    this.live = true;
    this.playback.start();
    if (this.muted) this.send({ type: "mute", on: true });
    this.on.connected();
  }

  receive(data) {
    if (this.closed) return;
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
      this.close(null);
    }
  }

  close(error) {
    if (this.closed) return;
    this.closed = true;
    clearTimeout(this.timer);
    this.release();
    this.on.closed(error);
  }

  release() {
    this.playback?.stop();
    for (const track of this.stream?.getTracks() || []) {
      track.onended = null;
      track.stop();
    }
    if (this.pc) {
      this.pc.onconnectionstatechange = null;
      this.pc.close();
    }
  }
}
