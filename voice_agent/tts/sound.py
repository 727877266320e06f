"""Shaping a voice's raw output: rate, level, pauses. Mono float32 in, 24 kHz int16 out."""

from __future__ import annotations

import numpy as np
import soxr

from voice_agent.types import OUT_RATE, Pcm16, PcmF32

FADE_S = 0.003
KNEE = 0.8


def to_pcm16(sound: PcmF32, gain: float = 1.0) -> Pcm16:
    """Scale and limit softly above 0.8 of full scale, so that no sample wraps or clips hard.
    Values that are not numbers become silence."""
    x = np.nan_to_num(sound * np.float32(gain), nan=0.0, posinf=1.0, neginf=-1.0)
    size = np.abs(x)
    if size.size and size.max() > KNEE:
        over = (size - KNEE) / (1.0 - KNEE)
        x = np.where(size > KNEE, np.sign(x) * (KNEE + (1.0 - KNEE) * np.tanh(over)), x)
    pcm: Pcm16 = np.rint(x * 32767.0).astype(np.int16)
    return pcm


def silence(ms: float) -> Pcm16:
    return np.zeros(round(OUT_RATE * ms / 1000), np.int16)


class Resampler:
    """A stream from a voice's rate to 24 kHz, sample positions kept (no net delay)."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._stream = (
            None if rate == OUT_RATE else soxr.ResampleStream(rate, OUT_RATE, 1, dtype="float32")
        )

    def push(self, sound: PcmF32, *, last: bool = False) -> PcmF32:
        if self._stream is None:
            return sound
        return np.asarray(self._stream.resample_chunk(sound, last=last), np.float32)

    def position(self, sample: float) -> int:
        """A position of the input, in samples of the output."""
        return round(sample * OUT_RATE / self.rate)


def fade_in(sound: PcmF32, rate: int) -> PcmF32:
    n = min(len(sound), round(rate * FADE_S))
    sound = sound.copy()
    sound[:n] *= np.linspace(0.0, 1.0, n, dtype=np.float32)
    return sound


def fade_out(sound: PcmF32, rate: int) -> PcmF32:
    return fade_in(sound[::-1], rate)[::-1]


def first_loud(sound: PcmF32, rate: int, *, floor: float = 0.02) -> int:
    """Index of the first 5 ms block whose peak exceeds `floor` of the whole's peak."""
    block = max(1, rate // 200)
    n = len(sound) // block
    if not n:
        return 0
    peaks = np.abs(sound[: n * block]).reshape(n, block).max(axis=1)
    loud = np.flatnonzero(peaks > floor * max(float(peaks.max()), 1e-4))
    return int(loud[0]) * block if loud.size else 0
