"""Concealment of lost PCM, after ITU-T G.711 Appendix I: the last pitch period goes on, fading.

For codecs whose decoder conceals nothing itself (G.711). Differences from the Appendix: 16 kHz
instead of 8, and no 3.75 ms of look-ahead, so nothing is delayed.
"""

from __future__ import annotations

import numpy as np

from voice_agent.types import IN_FRAME, IN_RATE, Pcm16, PcmF32

MS = IN_RATE // 1000
SHORTEST, LONGEST = 5 * MS, 15 * MS  # 66 to 200 Hz
MATCHED = 20 * MS
HISTORY = MATCHED + LONGEST
FULL_MS, GONE_MS = 10, 60  # full level up to here, none from there on
LEVEL = np.clip(
    (GONE_MS * MS - np.arange(GONE_MS * MS + IN_FRAME)) / ((GONE_MS - FULL_MS) * MS), 0.0, 1.0
).astype(np.float32)


class Concealer:
    """One stream of 16 kHz frames, int16 [320]: each 20 ms either `good` or `lost`."""

    def __init__(self) -> None:
        self._history: PcmF32 = np.zeros(HISTORY, np.float32)
        self._period: PcmF32 = np.zeros(0, np.float32)
        self._at = 0  # samples made since the loss began

    def good(self, pcm: Pcm16) -> Pcm16:
        """The frame as it came; after a loss it grows out of what was made up."""
        out = pcm
        if self._at:
            n = min(IN_FRAME, len(self._period) // 4 + self._at // 5)
            made = self._made(n)
            ramp = (np.arange(n, dtype=np.float32) + 0.5) / n
            out = pcm.copy()
            out[:n] = np.rint(made + (pcm[:n] - made) * ramp).astype(np.int16)
            self._at = 0
        self._remember(out.astype(np.float32))
        return out

    def lost(self) -> Pcm16:
        """20 ms in place of what did not come; silence once 60 ms are missing."""
        if self._at == 0:
            self._period = _period(self._history)
        made = self._made(IN_FRAME)
        self._at += IN_FRAME
        self._remember(made)
        return np.rint(made).astype(np.int16)

    def _made(self, n: int) -> PcmF32:
        """The next n samples of the repeated period."""
        index = np.arange(self._at, self._at + n)
        level = LEVEL[np.minimum(index, len(LEVEL) - 1)]
        return self._period[index % len(self._period)] * level

    def _remember(self, samples: PcmF32) -> None:
        self._history = np.concatenate([self._history[len(samples) :], samples])


def _period(history: PcmF32) -> PcmF32:
    """The last pitch period, its last quarter bent so that it can follow upon itself."""
    lag = _pitch(history)
    period = history[-lag:].copy()
    n = lag // 4
    ramp = (np.arange(n, dtype=np.float32) + 0.5) / n
    period[-n:] += (history[-lag - n : -lag] - period[-n:]) * ramp
    return period


def _pitch(history: PcmF32) -> int:
    """The lag in samples at which the last 20 ms match best what was before them."""
    recent = history[-MATCHED:]
    windows = np.lib.stride_tricks.sliding_window_view(history, MATCHED)[: LONGEST - SHORTEST + 1]
    power = np.einsum("ij,ij->i", windows, windows)
    match = windows @ recent / np.sqrt(power + 1.0)
    return LONGEST - int(np.argmax(match))
