// Level meters: root mean square of each stream, on a decibel scale, drawn once per frame.

const FLOOR_DB = -55;

export class Meters {
  constructor(bars) {
    this.bars = bars; // {name: element}
    this.analysers = {};
    this.shown = {};
    this.calm = window.matchMedia("(prefers-reduced-motion: reduce)");
  }

  async attach(name, stream) {
    this.context ||= new AudioContext();
    if (this.context.state === "suspended") this.context.resume();
    const analyser = this.context.createAnalyser();
    analyser.fftSize = 1024;
    this.context.createMediaStreamSource(stream).connect(analyser);
    this.analysers[name] = { analyser, samples: new Float32Array(analyser.fftSize) };
    if (!this.frame) this.draw();
  }

  // Seconds from a sample's hand-over to the loudspeaker, where the browser tells.
  get outputLatency() {
    return this.context?.outputLatency || 0;
  }

  level(name) {
    const { analyser, samples } = this.analysers[name];
    analyser.getFloatTimeDomainData(samples);
    let sum = 0;
    for (const s of samples) sum += s * s;
    const db = 10 * Math.log10(sum / samples.length + 1e-9);
    return Math.min(1, Math.max(0, 1 - db / FLOOR_DB));
  }

  draw() {
    this.frame = requestAnimationFrame(() => this.draw());
    for (const name of Object.keys(this.analysers)) {
      const now = this.level(name);
      const fall = this.calm.matches ? 0.02 : 0.06;
      const shown = Math.max(now, (this.shown[name] || 0) - fall);
      this.shown[name] = shown;
      this.bars[name].style.setProperty("--level", shown.toFixed(3));
    }
  }

  stop() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.analysers = {};
    this.shown = {};
    for (const bar of Object.values(this.bars)) bar.style.setProperty("--level", "0");
    this.context?.close();
    this.context = null;
  }
}
