"""RTP as a receiver hears it: sequence numbers, media time, and a buffer of fixed depth. Pure."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from .clip import Pcm
from .ear import Ear

BUFFER_S = 0.06
"""Of sound between arrival and loudspeaker; a packet that is later makes a hole, and the buffer
deeper by as much."""
_HALF16, _HALF32 = 1 << 15, 1 << 31


class RtpEar:
    """Feeds an ear from packets: a frame is heard at its own media time."""

    def __init__(self, ear: Ear, clock_rate: int) -> None:
        self._ear = ear
        self._rate = clock_rate
        self._base_s: float | None = None
        self._sequence = 0
        self._timestamp = 0
        self.lost = 0

    def add(self, sequence: int, timestamp: int, pcm: Pcm, now_s: float) -> None:
        """pcm: int16 [n] at 24 kHz. Duplicates and what comes after its successor are dropped."""
        if self._base_s is None:
            self._sequence, self._timestamp = sequence - 1, timestamp
            self._base_s = now_s + BUFFER_S - timestamp / self._rate
        step = (sequence - self._sequence + _HALF16) % (1 << 16) - _HALF16
        if step <= 0:
            return
        forward = (timestamp - self._timestamp + _HALF32) % (1 << 32) - _HALF32
        self._sequence, self._timestamp = self._sequence + step, self._timestamp + forward
        at_s = self._base_s + self._timestamp / self._rate
        missing_s = (step - 1) * len(pcm) / 24_000
        if step > 1:
            self.lost += step - 1
            self._ear.gap(at_s - missing_s, missing_s)
        if now_s > at_s:
            self._ear.gap(at_s, now_s - at_s)
            self._base_s += now_s - at_s
            at_s = now_s
        self._ear.frame(pcm, at_s)


def header(payload_type: int, sequence: int, timestamp: int, source: int) -> bytes:
    """RFC 3550, without extensions."""
    return struct.pack(
        "!BBHII", 0x80, payload_type, sequence & 0xFFFF, timestamp & 0xFFFFFFFF, source
    )


def parse(packet: bytes) -> tuple[int, int, int, bytes] | None:
    """(payload type, sequence, timestamp, payload); None: not RTP, or with a header that is cut."""
    if len(packet) < 12 or packet[0] >> 6 != 2:
        return None
    start = 12 + 4 * (packet[0] & 0x0F)
    if packet[0] & 0x10:
        if len(packet) < start + 4:
            return None
        start += 4 + 4 * int.from_bytes(packet[start + 2 : start + 4], "big")
    if start > len(packet):
        return None
    sequence, timestamp = struct.unpack_from("!HI", packet, 2)
    return packet[1] & 0x7F, sequence, timestamp, packet[start:]


def _decode_table() -> NDArray[np.int16]:
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = (((code & 0x0F) << 3) + 0x84) << ((code >> 4) & 7)
    value = magnitude - 0x84
    return np.where(code & 0x80, -value, value).astype(np.int16)


_DECODE = _decode_table()


def ulaw_decode(data: bytes) -> Pcm:
    """G.711 mu-law to int16 [n]."""
    return _DECODE[np.frombuffer(data, np.uint8)]


def ulaw_encode(pcm: Pcm) -> bytes:
    """int16 [n] to G.711 mu-law."""
    value = pcm.astype(np.int32)
    sign = np.where(value < 0, 0x80, 0)
    magnitude = np.minimum(np.abs(value), 32635) + 0x84
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
    mantissa = (magnitude >> (exponent + 3)) & 0x0F
    code: NDArray[np.uint8] = (~(sign | (exponent << 4) | mantissa) & 0xFF).astype(np.uint8)
    return code.tobytes()
