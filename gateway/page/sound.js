// What the caller chooses about sound: devices, volume, muting, and being heard only while a button
// is held. The choice of devices and the mode are remembered by this browser.

import { t } from "./words.js";

const KEPT = "voice-agent-sound";

function remembered() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) || {};
  } catch {
    return {};
  }
}

export class Sound {
  // ui: {mute, push, microphone, loudspeaker, loudspeakerBox, volume, voice} elements
  // on: {mute(bool), microphone(id)}
  constructor(ui, on) {
    this.ui = ui;
    this.on = on;
    this.muted = false;
    this.kept = remembered();
    ui.push.checked = !!this.kept.push;
    ui.volume.value = this.kept.volume ?? 100;
    ui.voice.volume = ui.volume.value / 100;
    this.listen();
    this.show();
    this.devices();
  }

  listen() {
    const { ui } = this;
    ui.push.addEventListener("change", () => {
      this.keep({ push: ui.push.checked });
      this.set(ui.push.checked);
    });
    ui.volume.addEventListener("input", () => {
      ui.voice.volume = ui.volume.value / 100;
      this.keep({ volume: Number(ui.volume.value) });
    });
    ui.microphone.addEventListener("change", () => {
      this.keep({ microphone: ui.microphone.value });
      this.on.microphone(ui.microphone.value);
    });
    ui.loudspeaker.addEventListener("change", () => {
      this.keep({ loudspeaker: ui.loudspeaker.value });
      this.playOn();
    });
    ui.mute.addEventListener("click", () => { if (!ui.push.checked) this.set(!this.muted); });
    ui.mute.addEventListener("pointerdown", () => this.hold(true));
    for (const end of ["pointerup", "pointercancel", "pointerleave", "blur"]) {
      ui.mute.addEventListener(end, () => this.hold(false));
    }
    const space = (event, down) => {
      const typing = event.target.closest?.("input, select, textarea, summary");
      if (event.code !== "Space" || typing || !ui.push.checked) return;
      event.preventDefault();
      if (!event.repeat) this.hold(down);
    };
    document.addEventListener("keydown", (event) => space(event, true));
    document.addEventListener("keyup", (event) => space(event, false));
    window.addEventListener("blur", () => this.hold(false));
    navigator.mediaDevices?.addEventListener?.("devicechange", () => this.devices());
  }

  get microphone() {
    return this.ui.microphone.value;
  }

  // A call begins: muted at once if it hears only while held.
  begin() {
    this.set(this.ui.push.checked);
    this.devices(); // their names are told once the microphone is allowed
    this.playOn();
  }

  hold(down) {
    if (this.ui.push.checked) this.set(!down);
  }

  set(muted) {
    this.muted = muted;
    this.on.mute(muted);
    this.show();
  }

  show() {
    const { mute, push } = this.ui;
    mute.textContent = t(push.checked ? "hold" : this.muted ? "unmute" : "mute");
    mute.setAttribute("aria-pressed", String(push.checked ? !this.muted : this.muted));
    document.body.toggleAttribute("data-muted", this.muted);
  }

  keep(change) {
    this.kept = { ...this.kept, ...change };
    try {
      localStorage.setItem(KEPT, JSON.stringify(this.kept));
    } catch {
      // a private window: it is forgotten
    }
  }

  async devices() {
    const all = await navigator.mediaDevices?.enumerateDevices?.().catch(() => []) || [];
    this.list(this.ui.microphone, all.filter((d) => d.kind === "audioinput"), "microphone");
    const outputs = all.filter((d) => d.kind === "audiooutput" && d.deviceId);
    this.ui.loudspeakerBox.hidden = !outputs.length || !this.ui.voice.setSinkId;
    this.list(this.ui.loudspeaker, outputs, "loudspeaker");
  }

  list(select, found, name) {
    const named = found.filter((d) => d.deviceId && d.deviceId !== "default" && d.label);
    select.replaceChildren(
      new Option(t("system"), ""), ...named.map((d) => new Option(d.label, d.deviceId)),
    );
    const wanted = this.kept[name] || "";
    select.value = named.some((d) => d.deviceId === wanted) ? wanted : "";
  }

  playOn() {
    this.ui.voice.setSinkId?.(this.ui.loudspeaker.value).catch(() => {
      this.ui.loudspeaker.value = "";
    });
  }
}
