"""WAV files, good and bad."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.audio import (
    read_wav,
    resample,
    to_float,
    to_int16,
    wav_bytes,
    write_wav,
)
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit

TONE = (8000 * np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000)).astype(np.int16)


def riff(
    tag: int, channels: int, rate: int, bits: int, body: bytes, size: int | None = None
) -> bytes:
    align = channels * bits // 8
    head = struct.pack("<4sI4s4sI", b"RIFF", 36 + len(body), b"WAVE", b"fmt ", 16)
    head += struct.pack("<HHIIHH", tag, channels, rate, rate * align, align, bits)
    return head + struct.pack("<4sI", b"data", len(body) if size is None else size) + body


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    write_wav(path, TONE, 16_000)
    sound = read_wav(path)
    assert np.array_equal(sound.pcm, TONE)
    assert (sound.rate, sound.source_channels, sound.truncated) == (16_000, 1, False)
    assert sound.seconds == 1.0
    assert list(tmp_path.iterdir()) == [path]


def test_the_standard_library_reads_what_we_write() -> None:
    stereo = np.stack([TONE, -TONE], axis=1)
    with wave.open(io.BytesIO(wav_bytes(stereo, 24_000))) as w:
        assert (w.getnchannels(), w.getframerate(), w.getnframes()) == (2, 24_000, 16_000)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 24_000, 44_100, 48_000])
def test_other_rates_are_resampled(rate: int) -> None:
    tone = (8000 * np.sin(np.arange(rate) * 2 * np.pi * 440 / rate)).astype(np.int16)
    sound = read_wav(wav_bytes(tone, rate))
    assert sound.source_rate == rate
    assert abs(len(sound.pcm) - 16_000) <= 2
    spectrum = np.abs(np.fft.rfft(to_float(sound.pcm)))
    assert abs(int(spectrum.argmax()) * sound.rate / len(sound.pcm) - 440) < 2


@pytest.mark.parametrize(
    ("tag", "bits", "body"),
    [
        (1, 8, ((TONE >> 8) + 128).astype(np.uint8).tobytes()),
        (1, 24, b"".join(int(x << 8).to_bytes(3, "little", signed=True) for x in TONE.tolist())),
        (1, 32, (TONE.astype(np.int32) << 16).tobytes()),
        (3, 32, to_float(TONE).tobytes()),
        (3, 64, to_float(TONE).astype(np.float64).tobytes()),
    ],
)
def test_every_sample_format_means_the_same(tag: int, bits: int, body: bytes) -> None:
    sound = read_wav(riff(tag, 1, 16_000, bits, body))
    step = 256 if bits == 8 else 1
    assert np.abs(sound.pcm.astype(int) - TONE).max() <= step


def test_extensible_and_extra_chunks() -> None:
    body = TONE.tobytes()
    fmt = struct.pack("<HHIIHHHHIH14s", 0xFFFE, 1, 16_000, 32_000, 2, 16, 22, 16, 4, 1, bytes(14))
    data = b"RIFF" + struct.pack("<I", 0) + b"WAVE"
    data += b"LIST" + struct.pack("<I", 3) + b"abc\0"  # odd chunk: padded
    data += b"fmt " + struct.pack("<I", len(fmt)) + fmt
    data += b"data" + struct.pack("<I", len(body)) + body
    assert np.array_equal(read_wav(data).pcm, TONE)


def test_channels_are_mixed_down() -> None:
    stereo = np.stack([TONE, np.zeros_like(TONE)], axis=1)
    sound = read_wav(wav_bytes(stereo, 16_000))
    assert np.abs(sound.pcm.astype(int) - TONE // 2).max() <= 1
    assert sound.source_channels == 2


def test_truncated_data_is_read_as_far_as_it_goes() -> None:
    whole = wav_bytes(TONE, 16_000)
    sound = read_wav(whole[: 44 + 8_001])
    assert sound.truncated
    assert np.array_equal(sound.pcm, TONE[:4_000])


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_streamed_sizes_mean_to_the_end(size: int) -> None:
    sound = read_wav(riff(1, 1, 16_000, 16, TONE.tobytes(), size))
    assert np.array_equal(sound.pcm, TONE)
    assert not sound.truncated


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "VA121"),
        (b"RI", "VA120"),
        (b"ID3\x03" + bytes(100), "VA120"),
        (wav_bytes(TONE, 16_000)[:30], "VA120"),
        (wav_bytes(TONE, 16_000)[:40], "VA120"),
        (wav_bytes(TONE[:0], 16_000), "VA121"),
        (riff(1, 1, 16_000, 16, b"\0"), "VA121"),
        (riff(7, 1, 8_000, 8, bytes(100)), "VA122"),
        (riff(1, 1, 16_000, 12, bytes(100)), "VA122"),
        (riff(1, 0, 16_000, 16, bytes(100)), "VA123"),
        (riff(1, 1, 0, 16, bytes(100)), "VA123"),
    ],
)
def test_bad_files_say_what_is_wrong(data: bytes, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_wav(data)
    assert caught.value.code == code


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_wav(tmp_path / "none.wav")
    with pytest.raises(UsageError, match="cannot write"):
        write_wav(tmp_path / "no" / "x.wav", TONE, 16_000)


@given(st.binary(max_size=200), st.integers(0, 44))
def test_no_bytes_crash_the_reader(noise: bytes, keep: int) -> None:
    for data in (noise, wav_bytes(TONE[:50], 16_000)[:keep] + noise):
        try:
            sound = read_wav(data)
        except UsageError:
            continue
        assert sound.pcm.dtype == np.int16


def test_not_a_number_and_clipping() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 2.0, -2.0, 0.5], np.float32)
    assert to_int16(x).tolist() == [0, 32767, -32768, 32767, -32768, 16384]


def test_impossible_rates() -> None:
    with pytest.raises(UsageError):
        resample(TONE, 100, 16_000)
