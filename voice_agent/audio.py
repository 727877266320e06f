"""Sound from outside: WAV files, turned into the house's mono int16.

Every malformed input ends in a `UsageError` that says what is wrong with it, or in a sensible
reading of what is there. Codes: VA120 not a usable WAV, VA121 no sound in it, VA122 a format we do
not read, VA123 a rate or layout that cannot be.
"""

from __future__ import annotations

import io
import logging
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soxr
from numpy.typing import NDArray

from .errors import UsageError
from .types import IN_RATE, Pcm16, PcmF32

log = logging.getLogger(__name__)

NOT_WAV, NO_SOUND, UNREAD_FORMAT, BAD_LAYOUT = "VA120", "VA121", "VA122", "VA123"
MIN_RATE, MAX_RATE = 4_000, 384_000
MAX_CHANNELS = 32
_PCM, _FLOAT, _ALAW, _ULAW, _EXTENSIBLE = 1, 3, 6, 7, 0xFFFE
_STREAMED = (0, 0xFFFFFFFF)  # data sizes written by programs that did not know the length


@dataclass(frozen=True, slots=True)
class Sound:
    """pcm: int16 [n], mono, at `rate` Hz. `source_*` describe the file; truncated: it ended
    early."""

    pcm: Pcm16
    rate: int
    source_rate: int
    source_channels: int
    truncated: bool = False

    @property
    def seconds(self) -> float:
        return len(self.pcm) / self.rate


@dataclass(frozen=True, slots=True)
class _Format:
    tag: int
    channels: int
    rate: int
    bits: int

    @property
    def frame_bytes(self) -> int:
        return self.channels * (self.bits // 8)


def to_float(pcm: Pcm16) -> PcmF32:
    """int16 [n] to float32 [n] in [-1, 1)."""
    return pcm.astype(np.float32) * np.float32(1.0 / 32768.0)


def to_int16(pcm: PcmF32) -> Pcm16:
    """float32 [n] to int16 [n]; not-a-number becomes 0 and anything outside [-1, 1] clips."""
    clean = np.nan_to_num(pcm, nan=0.0, posinf=1.0, neginf=-1.0)
    scaled: Pcm16 = np.clip(np.rint(clean * 32768.0), -32768, 32767).astype(np.int16)
    return scaled


def resample(pcm: Pcm16, rate_in: int, rate_out: int) -> Pcm16:
    """Whole-signal resampling of int16 [n]; streams need a stateful resampler instead."""
    for rate in (rate_in, rate_out):
        if not MIN_RATE <= rate <= MAX_RATE:
            raise UsageError(
                f"a sample rate of {rate} Hz is not between {MIN_RATE} and {MAX_RATE}",
                code=BAD_LAYOUT,
            )
    if rate_in == rate_out or len(pcm) == 0:
        return pcm
    out: Pcm16 = to_int16(soxr.resample(to_float(pcm), rate_in, rate_out, quality="HQ"))
    return out


def read_wav(source: str | Path | bytes, rate: int = IN_RATE) -> Sound:
    """Read a WAV file or its bytes as mono int16 at `rate` Hz.

    Reads 8, 16, 24 and 32-bit integer and 32/64-bit float PCM, plain or extensible, any channel
    count up to 32 (mixed down by averaging), any rate (resampled). A data chunk that ends early is
    read as far as it goes. Raises UsageError: no such file, empty, header broken, no samples, other
    codec.
    """
    name = "the audio" if isinstance(source, bytes) else str(source)
    data = source if isinstance(source, bytes) else _read_file(Path(source))
    fmt, body, truncated = _parse_riff(data, name)
    n_whole = len(body) // fmt.frame_bytes
    if n_whole == 0:
        raise UsageError(f"{name} holds no samples", code=NO_SOUND)
    if len(body) % fmt.frame_bytes:
        truncated = True
    frames = _decode(body[: n_whole * fmt.frame_bytes], fmt).reshape(n_whole, fmt.channels)
    mono: PcmF32 = frames[:, 0] if fmt.channels == 1 else frames.mean(axis=1, dtype=np.float32)
    if truncated:
        log.warning("%s ends early: read %.2f s", name, n_whole / fmt.rate)
    pcm = resample(to_int16(mono), fmt.rate, rate)
    if len(pcm) == 0:
        raise UsageError(f"{name} is too short to hear", code=NO_SOUND)
    return Sound(pcm, rate, fmt.rate, fmt.channels, truncated)


def wav_bytes(pcm: Pcm16, rate: int) -> bytes:
    """A 16-bit PCM WAV of int16 [n] (mono) or [n, channels]."""
    channels = 1 if pcm.ndim == 1 else pcm.shape[1]
    body = np.ascontiguousarray(pcm, "<i2").tobytes()
    out = io.BytesIO()
    out.write(struct.pack("<4sI4s4sI", b"RIFF", 36 + len(body), b"WAVE", b"fmt ", 16))
    out.write(struct.pack("<HHIIHH", _PCM, channels, rate, rate * channels * 2, channels * 2, 16))
    out.write(struct.pack("<4sI", b"data", len(body)))
    out.write(body)
    return out.getvalue()


def write_wav(path: str | Path, pcm: Pcm16, rate: int) -> None:
    """Write int16 [n] or [n, channels] so that no half-written file is ever seen under `path`.

    Raises UsageError when the place cannot be written (no folder, no permission, disk full).
    """
    target = Path(path)
    part = target.with_name(target.name + ".part")
    try:
        part.write_bytes(wav_bytes(pcm, rate))
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(
            f"cannot write {target}: {error.strerror or error}", code=NOT_WAV
        ) from error


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", code=NOT_WAV) from error


def _parse_riff(data: bytes, name: str) -> tuple[_Format, bytes, bool]:
    """(format, bytes of the data chunk, ended early)."""
    if not data:
        raise UsageError(f"{name} is empty", code=NO_SOUND)
    if len(data) < 12 or data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise UsageError(
            f"{name} is not a RIFF/WAVE file; raw PCM and compressed formats need converting first "
            "(for example `ffmpeg -i IN -ar 16000 -ac 1 OUT.wav`)",
            code=NOT_WAV,
        )
    fmt: _Format | None = None
    at = 12
    while at + 8 <= len(data):
        chunk, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        start = at + 8
        if chunk == b"fmt ":
            fmt = _parse_format(data[start : start + size], name)
        elif chunk == b"data":
            if fmt is None:
                raise UsageError(f"{name} has samples before their format", code=NOT_WAV)
            left = len(data) - start
            if size in _STREAMED and left > 0:
                return fmt, data[start:], False
            return fmt, data[start : start + size], size > left
        at = start + size + (size & 1)  # chunks are padded to even sizes
    missing = "no samples" if fmt else "no format"
    raise UsageError(f"{name} is cut off inside its header: {missing} found", code=NOT_WAV)


def _parse_format(chunk: bytes, name: str) -> _Format:
    if len(chunk) < 16:
        raise UsageError(f"{name} is cut off inside its header", code=NOT_WAV)
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        tag = struct.unpack_from("<H", chunk, 24)[0]
    known = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
    if tag not in known or bits not in known[tag]:
        codec = {_ALAW: "A-law", _ULAW: "µ-law"}.get(tag, f"format {tag}")
        raise UsageError(
            f"{name} holds {bits}-bit {codec} audio; use 16-bit PCM", code=UNREAD_FORMAT
        )
    if not 1 <= channels <= MAX_CHANNELS or not MIN_RATE <= rate <= MAX_RATE:
        raise UsageError(
            f"{name} claims {channels} channels at {rate} Hz, which cannot be right",
            code=BAD_LAYOUT,
        )
    return _Format(tag, channels, rate, bits)


def _decode(body: bytes, fmt: _Format) -> PcmF32:
    """Interleaved samples as float32 in [-1, 1]."""
    if fmt.tag == _FLOAT:
        floats = np.frombuffer(body, "<f4" if fmt.bits == 32 else "<f8")
        return np.nan_to_num(floats.astype(np.float32), nan=0.0, posinf=1.0, neginf=-1.0)
    if fmt.bits == 8:
        return (np.frombuffer(body, np.uint8).astype(np.float32) - 128.0) / np.float32(128.0)
    if fmt.bits == 24:
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    integers: NDArray[np.signedinteger] = np.frombuffer(body, f"<i{fmt.bits // 8}")
    return integers.astype(np.float32) / np.float32(2 ** (fmt.bits - 1))
