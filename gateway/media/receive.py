"""One caller's Opus stream to 16 kHz frames: jitter buffer, decoder, FEC and concealment."""

from __future__ import annotations

import numpy as np

from voice_agent.types import IN_FRAME, IN_RATE, SILENT_IN, Frame, FrameFlag, Pcm16

from . import opus
from .jitter import RATE, JitterBuffer, Kind, Popped

FADE = IN_RATE * 5 // 1000
"""What a packet left out shares with the one after it, so that the join is not heard as a click."""
_FALL = np.linspace(1.0, 0.0, FADE, dtype=np.float32)
_RANK = (FrameFlag.RECEIVED, FrameFlag.RECOVERED, FrameFlag.CONCEALED, FrameFlag.SILENCE)


class OpusReceiver:
    """`add` packets as they arrive, take one `frame` per 20 ms of the clock."""

    def __init__(self) -> None:
        self.jitter = JitterBuffer()
        self.garbage = 0
        self._decoder = opus.Decoder()
        self._samples = np.zeros(0, np.int16)
        self._left_out: Pcm16 | None = None

    def add(self, timestamp: int, payload: bytes, arrival_ms: float) -> None:
        """timestamp: the packet's RTP timestamp. What is not Opus is counted and dropped."""
        try:
            samples = opus.packet_samples(payload, RATE)
        except opus.OpusError:
            self.garbage += 1
            return
        fec = opus.has_fec(payload)
        silent = len(payload) <= opus.SILENT_BYTES
        self.jitter.add(timestamp, payload, samples, arrival_ms, fec=fec, silent=silent)

    def frame(self) -> Frame:
        """The next 20 ms; its flag is that of its worst part."""
        flag = FrameFlag.RECEIVED
        while len(self._samples) < IN_FRAME:
            pcm, got = self._decode(self.jitter.pop())
            if len(pcm):
                pcm = self._joined(pcm)
                self._samples = np.concatenate([self._samples, pcm])
                flag = max(flag, got, key=_RANK.index)
        pcm, self._samples = self._samples[:IN_FRAME], self._samples[IN_FRAME:]
        return Frame(pcm, flag)

    def _joined(self, pcm: Pcm16) -> Pcm16:
        """After a packet that was left out: its beginning runs into this one."""
        before, self._left_out = self._left_out, None
        if before is None or len(before) < FADE or len(pcm) < FADE:
            return pcm
        mixed = before[:FADE] * _FALL + pcm[:FADE] * (1.0 - _FALL)
        return np.concatenate([np.rint(mixed).astype(np.int16), pcm[FADE:]])

    def _decode(self, popped: Popped) -> tuple[Pcm16, FrameFlag]:
        samples = popped.samples * IN_RATE // RATE
        try:
            match popped.kind:
                case Kind.PACKET:
                    return self._decoder.decode(popped.payload or b""), FrameFlag.RECEIVED
                case Kind.FEC:
                    recovered = self._decoder.recover(popped.payload or b"", samples)
                    return recovered, FrameFlag.RECOVERED
                case Kind.SKIP:
                    skipped = self._decoder.decode(popped.payload or b"")
                    self._left_out = skipped if self._left_out is None else self._left_out
                    return SILENT_IN[:0], FrameFlag.RECEIVED
                case Kind.CONCEAL:
                    return self._decoder.conceal(samples), FrameFlag.CONCEALED
                case Kind.SILENCE:
                    return np.zeros(samples, np.int16), FrameFlag.SILENCE
        except opus.OpusError:
            self.garbage += 1
            return np.zeros(samples, np.int16), FrameFlag.CONCEALED

    def close(self) -> None:
        self._decoder.close()
