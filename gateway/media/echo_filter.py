"""Our voice as a line returns it, predicted: is there more in a frame than our echo?

Partitioned-block frequency-domain Kalman filter (Enzner and Vary, 2006; Kuech et al., 2014): how
far it trusts an error to be its own follows from the error's power, so a caller who talks over our
echo does not lead it astray. Pure. What it predicts is only the linear part of the echo; a
loudspeaker that clips leaves an error of about a fifth of it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from voice_agent.audio import to_float
from voice_agent.types import IN_FRAME, Pcm16, PcmF32

BLOCKS = 8  # of 20 ms: the room's answer that is modelled
BINS = IN_FRAME + 1
STAYS = 0.999  # of the path, from block to block
FIRST_UNSURE, FADES = 0.5, 0.5  # variance of a path of which nothing is known, and per 20 ms of it
NOISE_KEPT = 0.9  # of the error's power spectrum, from block to block
QUIET = 1e-6  # power in a bin below which nothing can be learnt

RATIO_KEPT = 0.6  # of error and prediction, from frame to frame
QUIETEST = 5e2 / 32768**2  # power that the line's noise is taken to have: 63 dB below full scale
NOISE, NOISE_RISES = 2.0, 1.014  # as much is nobody; the least of late, by 3 dB a second more
NEAR, NEAR_SINCE = 1.0, 3  # error per prediction that is somebody else, after so many frames:
# a sound of ours that is new to the filter is predicted badly for one or two
NEAR_FRAMES = 25  # for how long they are
LEARNT, LEARNT_KEPT = 0.5, 0.95  # of our echo's power is predicted, over 0.4 s

_Spectra: TypeAlias = NDArray[np.complexfloating[Any, Any]]


class EchoFilter:
    """Feed it each frame with the frame of ours whose echo begins in it, or one or two later."""

    def __init__(self) -> None:
        self._path: _Spectra = np.zeros((BLOCKS, BINS), np.complex64)
        fades = FIRST_UNSURE * FADES ** np.arange(BLOCKS, dtype=np.float32)
        self._unsure = np.repeat(fades[:, None], BINS, axis=1)
        self._sent: _Spectra = np.zeros((BLOCKS, BINS), np.complex64)
        self._last = np.zeros(IN_FRAME, np.float32)
        self._noise: NDArray[np.float32] = np.full(BINS, 1.0, np.float32)
        self._left = self._predicted = 0.0
        self._quiet = float(np.inf)  # power of the line's noise
        self._heard_slow = self._left_slow = 0.0
        self._near = self._more = 0
        self.learnt = False
        """The filter has once predicted most of what came back."""

    @property
    def near_end(self) -> bool:
        """Lately there was clearly more than what is predicted of our echo: a word has weak
        sounds between strong ones."""
        return self._near > 0

    def push(self, sent: Pcm16, heard: Pcm16) -> Pcm16:
        """int16 [320] each; returns the frame less the prediction, or as it is where that is less
        powerful."""
        ours, line = to_float(sent), to_float(heard)
        self._sent = np.roll(self._sent, 1, axis=0)
        self._sent[0] = np.fft.rfft(np.concatenate([self._last, ours]))
        self._last = ours
        echo = np.fft.irfft((self._path * self._sent).sum(0))[IN_FRAME:].astype(np.float32)
        error: PcmF32 = (line - echo).astype(np.float32)
        self._learn(error)
        return self._judged(line, echo, error, heard)

    def _learn(self, error: PcmF32) -> None:
        spectrum = np.fft.rfft(np.concatenate([np.zeros(IN_FRAME, np.float32), error]))
        power = np.abs(self._sent) ** 2
        now = np.abs(spectrum).astype(np.float32) ** 2
        self._noise = NOISE_KEPT * self._noise + (1.0 - NOISE_KEPT) * now
        gain = self._unsure / (0.5 * (power * self._unsure).sum(0) + self._noise + QUIET)
        step = np.fft.irfft(gain * np.conj(self._sent) * spectrum, axis=1)
        step[:, IN_FRAME:] = 0.0  # a block of the path is no longer than a frame
        self._path = (STAYS * (self._path + np.fft.rfft(step, axis=1))).astype(np.complex64)
        self._unsure = (
            STAYS**2 * (1.0 - 0.5 * gain * power) * self._unsure
            + (1.0 - STAYS**2) * np.abs(self._path) ** 2
        ).astype(np.float32)

    def _judged(self, line: PcmF32, echo: PcmF32, error: PcmF32, heard: Pcm16) -> Pcm16:
        in_line, in_echo, in_error = (float(np.square(x).mean()) for x in (line, echo, error))
        less = min(in_line, in_error)
        self._left = RATIO_KEPT * self._left + (1.0 - RATIO_KEPT) * less
        self._predicted = RATIO_KEPT * self._predicted + (1.0 - RATIO_KEPT) * in_echo
        self._quiet = max(QUIETEST, min(NOISE_RISES * self._quiet, self._left))
        near = self._left > NEAR * (self._predicted + NOISE * self._quiet)
        self._more = self._more + 1 if near else 0
        self._near = NEAR_FRAMES if self._more >= NEAR_SINCE else max(0, self._near - 1)
        self._heard_slow = LEARNT_KEPT * self._heard_slow + (1.0 - LEARNT_KEPT) * in_line
        self._left_slow = LEARNT_KEPT * self._left_slow + (1.0 - LEARNT_KEPT) * in_error
        if self._left_slow < (1.0 - LEARNT) * self._heard_slow:
            self.learnt = True
        if in_error >= in_line:
            return heard
        left: Pcm16 = np.clip(np.rint(error * 32768.0), -32768, 32767).astype(np.int16)
        return left
