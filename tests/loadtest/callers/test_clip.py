"""Recordings that callers speak, and those that they cannot."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from loadtest.callers.clip import RATE, ClipError, load_clip, load_clips, noise
from tests.support.clips import CLIPS

pytestmark = pytest.mark.unit


def write(path: Path, pcm: np.ndarray, rate: int = 16_000, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as w:
        w.setnchannels(channels)
        w.setsampwidth(2)
        w.setframerate(rate)
        w.writeframes(pcm.astype("<i2").tobytes())
    return path


def test_voiced_samples_are_found_between_silence_and_a_click(tmp_path: Path) -> None:
    pcm = np.zeros(16_000, np.int16)
    pcm[4_000:12_000] = 6000 * np.sin(np.arange(8_000) * 0.3)
    pcm[14_000:14_010] = 20_000
    clip = load_clip(write(tmp_path / "a.wav", pcm))
    assert clip.first / RATE == pytest.approx(0.25, abs=0.011)
    assert clip.last / RATE == pytest.approx(0.75, abs=0.011)


@pytest.mark.parametrize("what", ["missing", "text", "stereo", "empty", "silent"])
def test_what_is_no_recorded_speech_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "a.wav"
    if what == "text":
        path.write_text("hello")
    elif what == "stereo":
        write(path, np.ones(32_000), channels=2)
    elif what == "empty":
        write(path, np.zeros(0))
    elif what == "silent":
        write(path, np.zeros(16_000))
    with pytest.raises(ClipError, match=r"a\.wav"):
        load_clip(path)


def test_a_folder_without_recordings_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClipError, match=str(tmp_path)):
        load_clips(tmp_path)


def test_named_clips_come_first_and_all_without_them() -> None:
    assert [c.name for c in load_clips(CLIPS, ("ps_something", "no_such"))] == ["ps_something"]
    assert len(load_clips(CLIPS)) == len(list(CLIPS.glob("*.wav")))


def test_noise_is_seeded_and_loud() -> None:
    a, b, c = (noise(np.random.default_rng(seed), 5.0) for seed in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert len(a) == 5 * RATE
    assert np.abs(a.astype(int)).max() > 1500
