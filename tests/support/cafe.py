"""The sound of a cafe around a caller who says nothing: talkers far off, hiss, cups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voice_agent.types import IN_RATE, Pcm16

from .clips import clip, transcripts

TALKERS = 6
BABBLE_DB, HISS_DB, CUP_DB = -36.0, -48.0, -24.0  # RMS in dBFS; a caller at a phone has about -24
REVERB_S = 0.35


def cafe(seconds: float, seed: int = 0, *, babble_db: float = BABBLE_DB) -> Pcm16:
    """int16 [seconds * 16000]: six of the recorded talkers at once, all reverberant, so that none
    stands out for longer than a word; a cup every few seconds."""
    rng = np.random.default_rng(seed)
    n = int(seconds * IN_RATE)
    talk = np.zeros(n, np.float32)
    for _ in range(TALKERS):
        talk += _talker(n, rng) * rng.uniform(0.6, 1.0)
    room = rng.standard_normal(int(REVERB_S * IN_RATE)).astype(np.float32)
    room *= np.exp(-6.9 * np.arange(len(room)) / len(room), dtype=np.float32)
    sound = _at_level(_convolve(talk, room), babble_db)
    sound += _at_level(np.cumsum(rng.standard_normal(n)).astype(np.float32) % 7.0 - 3.5, HISS_DB)
    for at in np.flatnonzero(rng.random(n // IN_RATE) < 0.3):
        cup = _cup(rng)
        start = int(at) * IN_RATE
        sound[start : start + len(cup)] += cup
    pcm: Pcm16 = np.clip(sound * 32768.0, -32768, 32767).astype(np.int16)
    return pcm


def _talker(n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """One voice that speaks most of the time, each clip at the same level."""
    names = sorted(transcripts())
    out, at = np.zeros(n, np.float32), -int(rng.integers(0, 4 * IN_RATE))
    while at < n:
        voice = clip(names[int(rng.integers(len(names)))]).astype(np.float32)
        voice /= float(np.sqrt(np.square(voice).mean())) or 1.0
        part = voice[max(0, -at) : n - at]
        out[max(0, at) : max(0, at) + len(part)] += part
        at += len(voice) + int(rng.integers(0, IN_RATE))
    return out


def _cup(rng: np.random.Generator) -> NDArray[np.float32]:
    t = np.arange(IN_RATE * 80 // 1000) / IN_RATE
    ring = np.sin(2 * np.pi * rng.uniform(1800, 3500) * t) * np.exp(-t / 0.015)
    return np.asarray(ring * 10 ** (CUP_DB / 20) * np.sqrt(2), np.float32)


def _at_level(sound: NDArray[np.float32], db: float) -> NDArray[np.float32]:
    rms = float(np.sqrt(np.square(sound).mean())) or 1.0
    return np.asarray(sound * (10 ** (db / 20) / rms), np.float32)


def _convolve(sound: NDArray[np.float32], room: NDArray[np.float32]) -> NDArray[np.float32]:
    n = 1 << (len(sound) + len(room) - 1).bit_length()
    spectrum = np.fft.rfft(sound, n) * np.fft.rfft(room, n)
    return np.fft.irfft(spectrum, n)[: len(sound)].astype(np.float32)
