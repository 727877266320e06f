// How far what the caller hears is behind what has arrived: jitter buffer and loudspeaker. The
// server is told, so that it remembers the words that were heard and no others.

const REPORT_MS = 250;
const CHANGE_MS = 5;
const QUIET_MS = 2000; // without a packet of a line that always carries some: it is lost

// A delay that is told as two sums since the start (seconds of all samples, samples): the mean over
// the newest samples, in ms.
class Mean {
  constructor() {
    this.total = 0;
    this.count = 0;
    this.ms = 0;
  }

  next(total, count) {
    if (count > this.count) this.ms = (1000 * (total - this.total)) / (count - this.count);
    this.total = total;
    this.count = count;
    return this.ms;
  }
}

// What WebRTC tells, as `delays` below.
export async function delaysOf(pc) {
  const found = {};
  for (const stat of (await pc.getStats()).values()) {
    if (stat.type === "inbound-rtp" && stat.kind === "audio") {
      found.buffer = [stat.jitterBufferDelay, stat.jitterBufferEmittedCount];
      found.packets = stat.packetsReceived;
    } else if (stat.type === "media-playout") {
      found.output = [stat.totalPlayoutDelay, stat.totalSamplesCount];
    }
  }
  return found;
}

export class Playback {
  // delays(): {buffer: [seconds of all samples, samples], output: likewise, packets}, all optional;
  // send(message): to the server; outputLatency() -> s, where `delays` doesn't have it; quiet():
  // nothing comes any more
  constructor(delays, send, outputLatency, quiet) {
    this.quiet = quiet || (() => {});
    this.packets = 0;
    this.heardAt = 0;
    this.delays = delays;
    this.send = send;
    this.outputLatency = outputLatency || (() => 0);
    this.buffer = new Mean();
    this.output = new Mean();
    this.behindMs = 0;
    this.told = -Infinity;
  }

  start() {
    this.timer ||= setInterval(async () => {
      await this.report().catch(() => {}); // statistics may end before the call does
      if (this.silentMs > QUIET_MS) this.quiet();
    }, REPORT_MS);
  }

  // Since the last packet was seen, if there was any.
  get silentMs() {
    return this.heardAt && performance.now() - this.heardAt;
  }

  stop() {
    clearInterval(this.timer);
  }

  async report() {
    const { buffer, output, packets } = await this.delays();
    if (packets > this.packets) {
      this.packets = packets;
      this.heardAt = performance.now();
    }
    if (buffer) this.buffer.next(...buffer);
    if (output) this.output.next(...output);
    if (!this.buffer.count) return; // nothing has been played yet
    this.behindMs = this.buffer.ms + (this.output.ms || 1000 * this.outputLatency());
    if (Math.abs(this.behindMs - this.told) < CHANGE_MS) return;
    const message = { type: "playback", behind_ms: Math.round(this.behindMs) };
    if (this.send(message)) this.told = this.behindMs;
  }
}
