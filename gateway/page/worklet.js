// The sound of a call over the socket, on the audio thread: the microphone becomes 16 kHz frames of
// 20 ms, and the server's 24 kHz sound is played. 16-bit mono both ways.
//
// in: an ArrayBuffer to play, or null: throw away what waits.
// out: {pcm, waited_s, arrived}: a frame of the microphone, and how many seconds of sound lay before
// the loudspeaker when each piece had arrived, summed since the start.

const IN_RATE = 16000;
const OUT_RATE = 24000;
const FRAME = IN_RATE / 50;
const TAPS = 32; // of a phase, for each input sample that becomes one of the output
const FADE_S = 0.005;
const LONGEST_S = 10; // of sound that waits; the oldest gives way

const gcd = (a, b) => (b ? gcd(b, a % b) : a);

// The modified Bessel function of order 0, as Kaiser's window needs it.
function bessel(x) {
  let [sum, term] = [1, 1];
  for (let k = 1; term > 1e-12 * sum; k++) sum += term *= (x / (2 * k)) ** 2;
  return sum;
}

// One stream from one rate to another: polyphase, windowed sinc.
export class Resampler {
  constructor(from, to) {
    const g = gcd(from, to);
    this.up = to / g;
    this.down = from / g;
    this.taps = TAPS * Math.ceil(Math.max(1, from / to));
    this.phases = this.design();
    this.held = new Float32Array(this.taps - 1);
    this.next = 0; // the next output, in upsampled samples from the first window
  }

  design() {
    const { up, down, taps } = this;
    const n = taps * up;
    const cutoff = 0.93 / Math.max(up, down);
    const tap = (i) => {
      const t = i - (n - 1) / 2;
      const sinc = t ? Math.sin(Math.PI * cutoff * t) / (Math.PI * t) : cutoff;
      return sinc * bessel(8 * Math.sqrt(1 - (2 * t / (n - 1)) ** 2));
    };
    return Array.from({ length: up }, (_, phase) => {
      const row = Float32Array.from({ length: taps }, (_, k) => tap(phase + up * (taps - 1 - k)));
      const sum = row.reduce((a, b) => a + b, 0);
      return row.map((x) => x / sum);
    });
  }

  push(samples) {
    const all = new Float32Array(this.held.length + samples.length);
    all.set(this.held);
    all.set(samples, this.held.length);
    const out = [];
    for (; this.next < samples.length * this.up; this.next += this.down) {
      const first = Math.floor(this.next / this.up);
      const row = this.phases[this.next % this.up];
      let sum = 0;
      for (let k = 0; k < this.taps; k++) sum += row[k] * all[first + k];
      out.push(sum);
    }
    this.next -= samples.length * this.up;
    this.held = all.subarray(samples.length);
    return out;
  }
}

class Line extends AudioWorkletProcessor {
  constructor() {
    super();
    this.ear = new Resampler(sampleRate, IN_RATE);
    this.mouth = new Resampler(OUT_RATE, sampleRate);
    this.frame = new Int16Array(FRAME);
    this.filled = 0;
    this.queue = []; // pieces of samples
    this.played = 0; // of the first piece
    this.waiting = 0; // samples in all
    this.waitedS = 0;
    this.arrived = 0;
    this.port.onmessage = ({ data }) => (data ? this.add(new Int16Array(data)) : this.flush());
  }

  add(pcm) {
    const piece = this.mouth.push(Float32Array.from(pcm, (s) => s / 32768));
    this.queue.push(piece);
    this.waiting += piece.length;
    while (this.waiting > LONGEST_S * sampleRate) {
      this.waiting -= this.queue.shift().length - this.played;
      this.played = 0;
    }
    this.waitedS += this.waiting / sampleRate;
    this.arrived += 1;
  }

  // A few milliseconds fade, so that it makes no click.
  flush() {
    const n = Math.min(this.waiting, Math.round(FADE_S * sampleRate));
    const fade = Array.from({ length: n }, (_, i) => this.sample() * (1 - i / n));
    this.mouth = new Resampler(OUT_RATE, sampleRate);
    this.queue = n ? [fade] : [];
    this.played = 0;
    this.waiting = n;
  }

  sample() {
    const [piece] = this.queue;
    if (!piece) return 0;
    const value = piece[this.played++];
    this.waiting -= 1;
    if (this.played === piece.length) {
      this.queue.shift();
      this.played = 0;
    }
    return value;
  }

  process([input], [[speaker]]) {
    if (input[0]) this.listen(input[0]);
    for (let i = 0; i < speaker.length; i++) speaker[i] = this.sample();
    return true;
  }

  listen(samples) {
    for (const sample of this.ear.push(samples)) {
      this.frame[this.filled++] = Math.round(32767 * Math.min(1, Math.max(-1, sample)));
      if (this.filled < FRAME) continue;
      const pcm = this.frame.buffer;
      this.port.postMessage({ pcm, waited_s: this.waitedS, arrived: this.arrived }, [pcm]);
      this.frame = new Int16Array(FRAME);
      this.filled = 0;
    }
  }
}

registerProcessor("line", Line);
