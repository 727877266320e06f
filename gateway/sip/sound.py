"""One call's sound in the worker: baresip's PCM to frames and back, at whatever rate was agreed."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Protocol

import numpy as np
from baresip import AudioNotActive, AudioRestarted

from gateway.media.resample import Resampler
from gateway.media.steady import Steady
from voice_agent.types import FRAME_MS, IN_RATE, OUT_RATE, Frame, Pcm16

log = logging.getLogger(__name__)

SAMPLE_BYTES = 2
MOST_WAITING_MS = 80  # of ours in the stack: more is a delay that nothing would work off


class StackAudio(Protocol):
    """`baresip.CallAudio`: bytes of interleaved int16, never blocking."""

    def info(self) -> Any: ...
    def read(self, max_bytes: int) -> bytes: ...
    def write(self, pcm: bytes) -> int: ...
    def flush_tx(self) -> None: ...


class CallSound:
    """Both directions of one call; survives that the other side changes codec.

    The stack's sending clock is not ours, so one frame always waits in it: our voice leaves 20 to
    40 ms after `send`.
    """

    def __init__(self, audio: StackAudio) -> None:
        self.heard = Steady()
        self.unsent = 0  # frames that the stack had no room for
        self._audio = audio
        self._rate_in = self._rate_out = 0
        self._channels_in = self._channels_out = 1
        self._from_line = Resampler(IN_RATE, IN_RATE)
        self._to_line = Resampler(OUT_RATE, OUT_RATE)

    def receive(self) -> Frame:
        """The caller's next 20 ms."""
        try:
            info = self._audio.info()
            if info.rx_ready:
                self._follow_in(info.rx_sample_rate, info.rx_channels)
                if info.rx_buffered:
                    self.heard.push(self._from_line.push(self._mono(info.rx_buffered)))
        except (AudioNotActive, AudioRestarted):
            pass  # not up yet, or changing over: the gap is concealed
        return self.heard.frame()

    def _mono(self, n_bytes: int) -> Pcm16:
        pcm = np.frombuffer(self._audio.read(n_bytes), np.int16)
        if self._channels_in == 1:
            return pcm
        mixed = pcm.reshape(-1, self._channels_in).astype(np.int32).mean(axis=1)
        out: Pcm16 = mixed.astype(np.int16)
        return out

    def send(self, pcm: Pcm16) -> None:
        """pcm: int16 [480] at 24 kHz."""
        try:
            info = self._audio.info()
            if not info.tx_ready:
                return
            self._follow_out(info.tx_sample_rate, info.tx_channels)
            frame = self._rate_out * FRAME_MS // 1000 * self._channels_out * SAMPLE_BYTES
            data = self._to_line.push(pcm)
            if self._channels_out > 1:
                data = np.repeat(data, self._channels_out)
            if info.tx_buffered > frame * MOST_WAITING_MS // FRAME_MS:
                self.unsent += 1
                return
            if info.tx_buffered == 0:
                self._audio.write(bytes(frame))
            self._audio.write(data.tobytes())
        except (AudioNotActive, AudioRestarted):
            self.unsent += 1

    def cut(self) -> None:
        """What waits in the stack will not be sent."""
        with contextlib.suppress(AudioNotActive, AudioRestarted):
            self._audio.flush_tx()

    @property
    def sent_all(self) -> bool:
        """Nothing of ours waits in the stack."""
        try:
            return int(self._audio.info().tx_buffered) == 0
        except (AudioNotActive, AudioRestarted):
            return True

    def _follow_in(self, rate: int, channels: int) -> None:
        if rate != self._rate_in:
            self._rate_in = rate
            self._from_line = Resampler(rate, IN_RATE)
        self._channels_in = channels

    def _follow_out(self, rate: int, channels: int) -> None:
        if rate != self._rate_out:
            self._rate_out = rate
            self._to_line = Resampler(OUT_RATE, rate)
        self._channels_out = channels
