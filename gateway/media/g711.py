"""G.711 mu-law and A-law (ITU-T G.711), by tables built once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voice_agent.types import Pcm16

RATE = 8_000


def _ulaw_decode_table() -> Pcm16:
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    exponent, mantissa = (code >> 4) & 7, code & 15
    magnitude = (((mantissa << 3) + 0x84) << exponent) - 0x84
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)


def _alaw_decode_table() -> Pcm16:
    code = np.arange(256, dtype=np.int32) ^ 0x55
    exponent, mantissa = (code >> 4) & 7, code & 15
    base = (mantissa << 4) + 8
    magnitude = np.where(exponent == 0, base, (base + 0x100) << np.maximum(exponent - 1, 0))
    return np.where(code & 0x80, magnitude, -magnitude).astype(np.int16)


def _ulaw_encode_table() -> NDArray[np.uint8]:
    """Code of every int16, indexed by the sample's uint16 bits."""
    pcm = np.arange(65_536, dtype=np.int32).astype(np.uint16).view(np.int16).astype(np.int32)
    magnitude = np.minimum(np.abs(pcm), 32_635) + 0x84
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
    mantissa = (magnitude >> (exponent + 3)) & 15
    sign = np.where(pcm < 0, 0x80, 0)
    return np.asarray(~(sign | (exponent << 4) | mantissa) & 0xFF, np.uint8)


def _alaw_encode_table() -> NDArray[np.uint8]:
    """Code of every int16, indexed by the sample's uint16 bits."""
    pcm = np.arange(65_536, dtype=np.int32).astype(np.uint16).view(np.int16).astype(np.int32)
    positive = pcm >= 0
    magnitude = np.where(positive, pcm, -pcm - 1) >> 4
    exponent = np.where(magnitude >= 16, np.floor(np.log2(np.maximum(magnitude, 1))) - 3, 0)
    exponent = exponent.astype(np.int32)
    mantissa = np.where(exponent > 1, magnitude >> np.maximum(exponent - 1, 0), magnitude) & 15
    code = (exponent << 4) | mantissa | np.where(positive, 0x80, 0)
    return np.asarray(code ^ 0x55, np.uint8)


_ULAW_DECODE, _ALAW_DECODE = _ulaw_decode_table(), _alaw_decode_table()
_ULAW_ENCODE, _ALAW_ENCODE = _ulaw_encode_table(), _alaw_encode_table()


def decode_ulaw(data: bytes) -> Pcm16:
    """8 kHz int16 [len(data)]."""
    return _ULAW_DECODE[np.frombuffer(data, np.uint8)]


def decode_alaw(data: bytes) -> Pcm16:
    """8 kHz int16 [len(data)]."""
    return _ALAW_DECODE[np.frombuffer(data, np.uint8)]


def encode_ulaw(pcm: Pcm16) -> bytes:
    return bytes(_ULAW_ENCODE[np.ascontiguousarray(pcm).view(np.uint16)])


def encode_alaw(pcm: Pcm16) -> bytes:
    return bytes(_ALAW_ENCODE[np.ascontiguousarray(pcm).view(np.uint16)])
