"""The caller's end of the line: their microphone, their loudspeaker and the air between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import soxr

from voice_agent.audio import to_float
from voice_agent.types import FRAME_MS, IN_FRAME, IN_RATE, OUT_RATE, Pcm16, PcmF32

from .scene import After, Echo, Play, Scene

PER_MS = IN_RATE // 1000
ROOM_S = 0.08  # of reverberation that is computed
DULL = 6  # samples of the moving average that a turned-away voice passes


@dataclass(slots=True)
class Placed:
    """A sound whose time is known. start: sample of the call at which its first sample is."""

    play: Play
    start: int
    pcm: PcmF32

    @property
    def onset_ms(self) -> float:
        return (self.start + self.play.sound.onset) / PER_MS

    @property
    def end_ms(self) -> float:
        return (self.start + self.play.sound.end) / PER_MS

    @property
    def voiced_ms(self) -> list[tuple[float, float]]:
        """Its stretches of speech, in ms of the call."""
        return [
            ((self.start + a) / PER_MS, (self.start + b) / PER_MS)
            for a, b in self.play.sound.voiced
        ]


class Room:
    """Gives microphone frames one after the other and takes what the loudspeaker plays."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._noise = 32768 * 10 ** (scene.noise_db / 20)
        self._reverb = _reverb(self._rng)
        self._waiting = list(scene.plays)
        self.placed: list[Placed] = []
        self._echo = _EchoPath(scene.echo, self._reverb) if scene.echo else None
        self._at = 0
        self._place(After.START, 0.0)

    @property
    def all_placed(self) -> bool:
        return not self._waiting

    def reply_sounds(self, ms: float) -> None:
        """Our first reply is heard from `ms` of the call on."""
        self._place(After.REPLY, ms)

    def _place(self, anchor: After, ms: float) -> None:
        while self._waiting and self._waiting[0].after is anchor:
            play = self._waiting.pop(0)
            start = round((ms + play.ms) * PER_MS) - play.sound.onset
            pcm = to_float(play.sound.pcm) * np.float32(32768 * 10 ** (play.gain_db / 20))
            if play.far:
                dull = np.convolve(pcm, np.full(DULL, 1 / DULL, np.float32))
                pcm = np.convolve(dull, self._reverb).astype(np.float32)
            self.placed.append(Placed(play, start, pcm))
            anchor, ms = After.SOUND, self.placed[-1].end_ms

    def hear(self) -> Pcm16:
        """The microphone's next 20 ms: int16 [320]."""
        out = self._rng.standard_normal(IN_FRAME).astype(np.float32) * np.float32(self._noise)
        a, b = self._at, self._at + IN_FRAME
        for placed in self.placed:
            lo, hi = max(a, placed.start), min(b, placed.start + len(placed.pcm))
            if lo < hi:
                out[lo - a : hi - a] += placed.pcm[lo - placed.start : hi - placed.start]
        if self._echo is not None:
            out += self._echo.take()
        self._at = b
        heard: Pcm16 = np.clip(np.rint(out), -32768, 32767).astype(np.int16)
        return heard

    def play(self, pcm: Pcm16) -> None:
        """The loudspeaker's next 20 ms: int16 [480] at 24 kHz."""
        if self._echo is not None:
            self._echo.give(pcm)


class _EchoPath:
    """Loudspeaker to microphone, in steps of one frame."""

    def __init__(self, echo: Echo, reverb: PcmF32) -> None:
        self._echo = echo
        self._response = reverb / np.sqrt(np.square(reverb).sum())
        self._rate = soxr.ResampleStream(OUT_RATE, IN_RATE, 1, dtype="float32", quality="MQ")
        self._queue = np.zeros((echo.delay_ms + FRAME_MS) * PER_MS, np.float32)
        self._tail = np.zeros(len(reverb) - 1, np.float32)

    def give(self, pcm: Pcm16) -> None:
        sound = pcm.astype(np.float32)
        if self._echo.clipped:
            sound = 4000 * np.tanh(sound / 4000) + 0.1 * np.clip(sound, -2500, 2500)
        self._queue = np.concatenate([self._queue, self._rate.resample_chunk(sound)])

    def take(self) -> PcmF32:
        n = min(IN_FRAME, len(self._queue))
        dry = np.zeros(IN_FRAME, np.float32)
        dry[:n], self._queue = self._queue[:n], self._queue[n:]
        wet = np.convolve(dry, self._response)
        wet[: len(self._tail)] += self._tail
        self._tail = wet[IN_FRAME:].astype(np.float32)
        out: PcmF32 = (wet[:IN_FRAME] * 10 ** (self._echo.gain_db / 20)).astype(np.float32)
        return out


def _reverb(rng: np.random.Generator) -> PcmF32:
    """A small furnished room: the direct sound, then noise that falls by 60 dB in 0.25 s."""
    n = int(ROOM_S * IN_RATE)
    out = rng.standard_normal(n).astype(np.float32) * np.float32(0.12)
    out *= 10 ** (-3 * np.arange(n, dtype=np.float32) / (0.25 * IN_RATE))
    out[0] = 1.0
    return out
