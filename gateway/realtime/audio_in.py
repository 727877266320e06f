"""Audio from a program: chunks of any length in, 16 kHz 20 ms frames out, in order.

Media time is samples. A sender faster than real time is heard at its own sample time, as fast as
the call may take it (`FRAMES_PER_TICK`), with at most BACKLOG_S waiting. A gap is not silence:
media time waits for GAP_S, then silence fills it so that a turn can end.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Callable

import numpy as np

from gateway.media import g711
from gateway.media.resample import Resampler
from voice_agent.types import (
    FRAME_MS,
    IN_FRAME,
    IN_RATE,
    OUT_RATE,
    SILENT_IN,
    Frame,
    FrameFlag,
    Pcm16,
)

from .client_events import AlawFormat, PcmFormat
from .errors import ProtocolError
from .settings import Format

FRAMES_PER_TICK = 8
BACKLOG_S = 60.0
GAP_S = 1.0


class AudioInput:
    """Owns the caller's audio between the socket and `hear`.

    Marks (commit, clear) keep their place between the samples: each is a callable that runs when
    everything before it has been heard.
    """

    def __init__(self, hear: Callable[[Frame], None], fmt: Format | None = None) -> None:
        """fmt: of what is appended; None: it is only fed."""
        self._hear = hear
        self._queue: deque[Frame | Callable[[], None]] = deque()
        self._n_frames = 0
        self._rest = np.zeros(0, np.int16)
        self._credit = FRAMES_PER_TICK
        self._idle_ticks = 0
        self.fill_gaps = True
        self.heard_frames = 0
        if fmt is not None:
            self.set_format(fmt)

    def set_format(self, fmt: Format) -> None:
        self._format = fmt
        rate = OUT_RATE if isinstance(fmt, PcmFormat) else g711.RATE
        self._resampler = Resampler(rate, IN_RATE)

    def append(self, encoded: str) -> None:
        """ProtocolError names what is wrong with this chunk; it is then not heard at all."""
        data = self._decode_base64(encoded)
        if isinstance(self._format, PcmFormat):
            if len(data) % 2:
                raise ProtocolError(
                    "invalid_audio",
                    f"{len(data)} bytes are not whole 16-bit samples: send little-endian 16-bit "
                    "PCM, mono, 24 kHz, cut between samples.",
                    param="audio",
                )
            pcm = np.frombuffer(data, "<i2").astype(np.int16, copy=False)
        elif isinstance(self._format, AlawFormat):
            pcm = g711.decode_alaw(data)
        else:
            pcm = g711.decode_ulaw(data)
        self.feed(self._resampler.push(pcm))

    def feed(self, pcm: Pcm16) -> None:
        """16 kHz. Raises ProtocolError when too much waits; it is then not heard at all."""
        samples = np.concatenate([self._rest, pcm])
        whole = len(samples) // IN_FRAME
        if (self._n_frames + whole) * FRAME_MS > BACKLOG_S * 1000:
            raise ProtocolError(
                "input_audio_buffer_full",
                f"More than {BACKLOG_S:.0f} s of audio are waiting to be heard: send at the pace "
                "of speech.",
                param="audio",
            )
        self._rest = samples[whole * IN_FRAME :]
        for i in range(whole):
            self._queue.append(Frame(samples[i * IN_FRAME : (i + 1) * IN_FRAME]))
        self._n_frames += whole
        self._idle_ticks = 0
        self._drain()

    def _decode_base64(self, encoded: str) -> bytes:
        if not encoded:
            raise ProtocolError("invalid_audio", "The audio is empty.", param="audio")
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise ProtocolError(
                "invalid_audio", "The audio is not valid base64.", param="audio"
            ) from None
        at = data.find(b"RIFF")
        if at >= 0 and data[at + 8 : at + 12] == b"WAVE":
            raise ProtocolError(
                "invalid_audio",
                "The audio holds a WAV header: send the samples only (skip the header, usually "
                "44 bytes).",
                param="audio",
            )
        return data

    def mark(self, action: Callable[[], None]) -> None:
        """Run `action` once everything appended so far is heard (the last part of a frame too)."""
        if len(self._rest):
            padded = np.zeros(IN_FRAME, np.int16)
            padded[: len(self._rest)] = self._rest
            self._rest = self._rest[:0]
            self._queue.append(Frame(padded))
            self._n_frames += 1
        self._queue.append(action)
        self._drain()

    def clear(self) -> None:
        """Drop what was not heard yet; marks before this point still run."""
        marks = [entry for entry in self._queue if not isinstance(entry, Frame)]
        self._queue.clear()
        self._n_frames = 0
        self._rest = self._rest[:0]
        for action in marks:
            action()

    def tick(self) -> None:
        """Once per 20 ms of the clock."""
        self._credit = FRAMES_PER_TICK
        self._drain()
        self._idle_ticks += 1
        waited_s = self._idle_ticks * FRAME_MS / 1000
        if self.fill_gaps and self.heard_frames and not self._queue and waited_s > GAP_S:
            self._give(Frame(SILENT_IN, FrameFlag.SILENCE))

    def _drain(self) -> None:
        while self._queue:
            entry = self._queue[0]
            if isinstance(entry, Frame):
                if not self._credit:
                    return
                self._credit -= 1
                self._n_frames -= 1
                self._queue.popleft()
                self._give(entry)
            else:
                self._queue.popleft()
                entry()

    def _give(self, frame: Frame) -> None:
        self.heard_frames += 1
        self._hear(frame)
