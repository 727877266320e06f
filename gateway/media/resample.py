"""Streaming rate conversion with a delay below a millisecond.

A polyphase windowed-sinc filter in numpy. Library resamplers in streaming mode hand out their
output in large blocks (25 to 90 ms for speech rates), which a conversation would hear as latency.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from voice_agent.types import Pcm16

TAPS_PER_PHASE = 48


@lru_cache(maxsize=16)
def _phases(up: int, down: int) -> NDArray[np.float32]:
    """Taps [up, TAPS_PER_PHASE], newest sample last, unit gain in each phase at DC."""
    n = TAPS_PER_PHASE * up
    t = np.arange(n) - (n - 1) / 2
    cutoff = 0.93 / max(up, down)  # of the Nyquist rate of the upsampled signal
    taps = cutoff * np.sinc(cutoff * t) * np.kaiser(n, 8.0)
    phases = np.stack([taps[p::up][::-1] for p in range(up)])
    phases /= phases.sum(axis=1, keepdims=True)
    return phases.astype(np.float32)


class Resampler:
    """One stream from `rate_in` to `rate_out`; int16 mono in and out, chunks of any length.

    For every `rate_in` samples pushed, `rate_out` come out (no start-up gap: history is silence);
    the signal is delayed by TAPS_PER_PHASE / 2 input samples (1 ms at 24 kHz, 3 ms at 8 kHz).
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        g = math.gcd(rate_in, rate_out)
        self._up, self._down = rate_out // g, rate_in // g
        self._same = rate_in == rate_out
        self.reset()

    def reset(self) -> None:
        self._buffer = np.zeros(TAPS_PER_PHASE - 1, np.float32)
        self._next = 0  # upsampled index of the next output, counted from the buffer's first window

    def push(self, pcm: Pcm16) -> Pcm16:
        if self._same or not len(pcm):
            return pcm
        up, down = self._up, self._down
        buffer = np.concatenate([self._buffer, pcm.astype(np.float32)])
        n_in = len(buffer) - TAPS_PER_PHASE + 1
        windows = np.lib.stride_tricks.sliding_window_view(buffer, TAPS_PER_PHASE)
        n_out = max(0, -(-(n_in * up - self._next) // down))
        out = np.empty(n_out, np.float32)
        phases = _phases(up, down)
        for r in range(min(up, n_out)):
            index = self._next + r * down
            rows = windows[index // up :: down]
            part = out[r::up]
            part[:] = rows[: len(part)] @ phases[index % up]
        self._next += n_out * down - n_in * up
        self._buffer = buffer[n_in:]
        np.rint(out, out=out)
        np.clip(out, -32768, 32767, out=out)
        return out.astype(np.int16)
