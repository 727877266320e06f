"""Opus (RFC 6716) through the libopus that PyAV carries: no extra package, no executor.

Encoder: 24 kHz mono 20 ms frames with in-band FEC. Decoder: any Opus packet straight to 16 kHz
mono, with packet loss concealment and FEC. Neither is thread-safe; one per direction and call.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import lru_cache
from pathlib import Path

import av
import numpy as np

from voice_agent.errors import InternalError, UsageError
from voice_agent.types import IN_RATE, OUT_FRAME, OUT_RATE, Pcm16

from .loss import EXPECTED_PERCENT

APPLICATION_VOIP = 2048
SET_BITRATE, SET_COMPLEXITY, SET_INBAND_FEC, SET_PACKET_LOSS, SET_DTX = (
    4002,
    4010,
    4012,
    4014,
    4016,
)
SILENT_BYTES = 2  # RFC 6716, 2.1.9: a payload as small says that nothing follows for a while
MAX_PACKET = 1275
MAX_DECODED = IN_RATE * 120 // 1000  # an Opus packet is 120 ms at most


class OpusError(ValueError):
    """A packet that is not Opus; the sender's fault, never fatal."""


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """Raises UsageError when neither PyAV's wheel nor the system has libopus."""
    site = Path(av.__file__).parent
    folders = (site.parent / "av.libs", site / ".dylibs")
    found = [str(p) for f in folders if f.is_dir() for p in sorted(f.glob("libopus[-.]*"))]
    system = ctypes.util.find_library("opus")
    for name in [*found, *([system] if system else [])]:
        try:
            lib = ctypes.CDLL(name)
        except OSError:
            continue
        p, i, i32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int32
        out = ctypes.POINTER(i)
        lib.opus_encoder_create.restype = p
        lib.opus_encoder_create.argtypes = [i32, i, i, out]
        lib.opus_encoder_destroy.argtypes = [p]
        lib.opus_encode.restype = i32
        lib.opus_encode.argtypes = [p, p, i, p, i32]
        lib.opus_decoder_create.restype = p
        lib.opus_decoder_create.argtypes = [i32, i, out]
        lib.opus_decoder_destroy.argtypes = [p]
        lib.opus_decode.restype = i
        lib.opus_decode.argtypes = [p, ctypes.c_char_p, i32, p, i, i]
        lib.opus_packet_get_nb_samples.restype = i
        lib.opus_packet_get_nb_samples.argtypes = [ctypes.c_char_p, i32, i32]
        return lib
    raise UsageError(
        "WebRTC needs libopus: install PyAV from its wheel (pip install --force-reinstall av), "
        "or the system's libopus0",
        code="VA453",
    )


def packet_samples(payload: bytes, rate: int = 48_000) -> int:
    """Duration of a packet in samples at `rate`; OpusError if it is not an Opus packet."""
    n = int(_library().opus_packet_get_nb_samples(payload, len(payload), rate)) if payload else 0
    if n <= 0:
        raise OpusError("not an Opus packet")
    return n


def has_fec(payload: bytes) -> bool:
    """Whether the packet carries a copy of the frame before it (an old libopus can't tell: yes)."""
    test = getattr(_library(), "opus_packet_has_lbrr", None)
    return True if test is None else int(test(payload, ctypes.c_int32(len(payload)))) == 1


class Encoder:
    """24 kHz mono frames of 480 samples to Opus payloads."""

    def __init__(
        self,
        *,
        bitrate: int = 40_000,
        complexity: int = 3,
        expected_loss_percent: int = EXPECTED_PERCENT,
        dtx: bool = False,
    ) -> None:
        """dtx: silence becomes payloads of SILENT_BYTES at most, of which the first one is sent."""
        self._lib = _library()
        self._state: int | None = None
        error = ctypes.c_int()
        self._state = self._lib.opus_encoder_create(
            OUT_RATE, 1, APPLICATION_VOIP, ctypes.byref(error)
        )
        if not self._state or error.value:
            raise InternalError(f"libopus refused to make an encoder ({error.value})")
        for request, value in (
            (SET_BITRATE, bitrate),
            (SET_COMPLEXITY, complexity),
            (SET_INBAND_FEC, 1),
            (SET_PACKET_LOSS, expected_loss_percent),
            (SET_DTX, int(dtx)),
        ):
            self._set(request, value)
        self._out = ctypes.create_string_buffer(MAX_PACKET)

    def _set(self, request: int, value: int) -> None:
        # variadic: the state must be passed as an explicit pointer
        self._lib.opus_encoder_ctl(ctypes.c_void_p(self._state), request, ctypes.c_int32(value))

    def expect_loss(self, percent: int) -> None:
        """0: packets carry no copy of the frame before, from the next one on."""
        if self._state is not None:
            self._set(SET_PACKET_LOSS, percent)

    def encode(self, pcm: Pcm16) -> bytes:
        if self._state is None:
            raise InternalError("encoder is closed")
        if len(pcm) != OUT_FRAME:
            raise InternalError(f"the encoder takes {OUT_FRAME} samples, got {len(pcm)}")
        pcm = np.ascontiguousarray(pcm, np.int16)
        n = self._lib.opus_encode(self._state, pcm.ctypes.data, OUT_FRAME, self._out, MAX_PACKET)
        if n < 0:
            raise InternalError(f"libopus could not encode ({n})")
        return self._out.raw[:n]

    def close(self) -> None:
        state, self._state = self._state, None
        if state is not None:
            self._lib.opus_encoder_destroy(state)

    def __del__(self) -> None:
        self.close()


class Decoder:
    """Opus payloads to 16 kHz mono int16."""

    def __init__(self) -> None:
        self._lib = _library()
        self._state: int | None = None
        error = ctypes.c_int()
        self._state = self._lib.opus_decoder_create(IN_RATE, 1, ctypes.byref(error))
        if not self._state or error.value:
            raise InternalError(f"libopus refused to make a decoder ({error.value})")
        self._out = np.zeros(MAX_DECODED, np.int16)

    def _decode(self, payload: bytes | None, samples: int, fec: int) -> Pcm16:
        if self._state is None:
            raise InternalError("decoder is closed")
        size = len(payload) if payload is not None else 0
        n = self._lib.opus_decode(self._state, payload, size, self._out.ctypes.data, samples, fec)
        if n < 0:
            raise OpusError(f"not an Opus packet ({n})")
        return self._out[:n].copy()

    def decode(self, payload: bytes) -> Pcm16:
        """Samples [n] at 16 kHz, n the packet's own duration; OpusError on garbage."""
        if not payload:
            raise OpusError("empty packet")
        return self._decode(payload, MAX_DECODED, 0)

    def recover(self, next_payload: bytes, samples: int) -> Pcm16:
        """The lost `samples` before `next_payload`, from the copy it carries."""
        return self._decode(next_payload, samples, 1)

    def conceal(self, samples: int) -> Pcm16:
        """A plausible continuation of the last `samples` (a multiple of 2.5 ms)."""
        return self._decode(None, samples, 0)

    def close(self) -> None:
        state, self._state = self._state, None
        if state is not None:
            self._lib.opus_decoder_destroy(state)

    def __del__(self) -> None:
        self.close()
