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
def _phases(up: int, down: int) -> NDArray[np.float64]:
    """Taps [up, TAPS_PER_PHASE], newest sample last, unit gain in each phase at DC."""
    n = TAPS_PER_PHASE * up
    t = np.arange(n) - (n - 1) / 2
    cutoff = 0.93 / max(up, down)  # of the Nyquist rate of the upsampled signal
    taps = cutoff * np.sinc(cutoff * t) * np.kaiser(n, 8.0)
    phases = np.stack([taps[p::up][::-1] for p in range(up)])
    phases /= phases.sum(axis=1, keepdims=True)
    return phases


@lru_cache(maxsize=32)
def _band(up: int, down: int, phase: int) -> NDArray[np.float64]:
    """[window, up]: of one window of samples, `up` outputs, the first of them `phase` in its own.

    One product of it with the windows, each `down` samples on, takes a third of the time of a
    product for each phase.
    """
    phases = _phases(up, down)
    at = [divmod(phase + r * down, up) for r in range(up)]
    band = np.zeros((TAPS_PER_PHASE + at[-1][0], up), np.float64)
    for column, (first, of) in enumerate(at):
        band[first : first + TAPS_PER_PHASE, column] = phases[of]
    return band


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
        self._buffer = np.zeros(TAPS_PER_PHASE - 1, np.float64)
        self._next = 0  # upsampled index of the next output, counted from the buffer's first window

    def push(self, pcm: Pcm16) -> Pcm16:
        if self._same or not len(pcm):
            return pcm
        up, down = self._up, self._down
        buffer = np.concatenate([self._buffer, pcm.astype(np.float64)])
        n_in = len(buffer) - TAPS_PER_PHASE + 1
        n_out = max(0, -(-(n_in * up - self._next) // down))
        out = self._outputs(buffer, n_out)
        self._next += n_out * down - n_in * up
        self._buffer = buffer[n_in:]
        np.rint(out, out=out)
        np.minimum(np.maximum(out, -32768, out=out), 32767, out=out)  # half of `clip`'s time
        return out.astype(np.int16)

    def _outputs(self, buffer: NDArray[np.float64], n: int) -> NDArray[np.float64]:
        """The next n, unrounded. The last window may end behind the samples, over zero taps.

        In double precision the order of summing, which depends on the chunk's length, is not heard.
        """
        if n == 0:
            return np.empty(0, np.float64)
        up, down = self._up, self._down
        first, phase = divmod(self._next, up)
        band = _band(up, down, phase)
        blocks, window = -(-n // up), len(band)
        missing = first + (blocks - 1) * down + window - len(buffer)
        if missing > 0:
            buffer = np.concatenate([buffer, np.zeros(missing, np.float64)])
        strides = (down * buffer.itemsize, buffer.itemsize)
        windows = np.ndarray((blocks, window), np.float64, buffer, first * buffer.itemsize, strides)
        return (windows @ band).reshape(-1)[:n]
