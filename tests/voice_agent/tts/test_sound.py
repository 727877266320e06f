"""Levels, rates and fades."""

from __future__ import annotations

import numpy as np
import pytest

from voice_agent.tts.phrases import parts
from voice_agent.tts.sound import (
    Resampler,
    fade_in,
    fade_out,
    first_loud,
    silence,
    to_pcm16,
)
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.unit


def tone(rate: int, seconds: float, hz: float = 440.0, level: float = 0.5) -> np.ndarray:
    t = np.arange(round(rate * seconds)) / rate
    return (level * np.sin(2 * np.pi * hz * t)).astype(np.float32)


def test_quiet_sound_is_scaled_exactly_and_loud_sound_is_limited() -> None:
    x = np.array([0.0, 0.5, -0.5, 0.8, 5.0, -5.0], np.float32)
    pcm = to_pcm16(x)
    assert pcm.dtype == np.int16
    assert pcm[:4].tolist() == [0, 16384, -16384, 26214]
    assert 32000 < pcm[4] <= 32767
    assert pcm[5] == -pcm[4]
    assert to_pcm16(np.array([np.nan, np.inf, -np.inf], np.float32))[0] == 0
    assert to_pcm16(np.zeros(0, np.float32)).shape == (0,)


def test_limiter_keeps_order() -> None:
    x = np.linspace(0, 3, 500, dtype=np.float32)
    assert np.all(np.diff(to_pcm16(x).astype(int)) >= 0)


@pytest.mark.parametrize("sizes", [[22050], [1, 700, 7000, 14349], [11025, 11025]])
def test_streamed_resampling_keeps_positions(sizes: list[int]) -> None:
    x = tone(22050, 1.0)
    r = Resampler(22050)
    out, at = [], 0
    for i, n in enumerate(sizes):
        out.append(r.push(x[at : at + n], last=i == len(sizes) - 1))
        at += n
    y = np.concatenate(out)
    assert abs(len(y) - OUT_RATE) <= 2
    expected = tone(OUT_RATE, 1.0)[2000:-2000]
    assert np.abs(y[2000 : 2000 + len(expected)] - expected).max() < 0.01
    assert r.position(22050) == OUT_RATE


def test_same_rate_passes_through() -> None:
    x = tone(OUT_RATE, 0.1)
    assert Resampler(OUT_RATE).push(x) is x


def test_fades_do_not_touch_their_input() -> None:
    x = np.ones(1000, np.float32)
    assert fade_in(x, OUT_RATE)[0] == 0
    assert fade_out(x, OUT_RATE)[-1] == 0
    assert x.min() == 1
    assert fade_in(x[:1], OUT_RATE).shape == (1,)


def test_first_loud() -> None:
    x = np.concatenate([np.full(2400, 1e-4, np.float32), tone(OUT_RATE, 0.1)])
    assert abs(first_loud(x, OUT_RATE) - 2400) <= 240
    assert first_loud(np.zeros(5000, np.float32), OUT_RATE) == 0
    assert first_loud(np.zeros(3, np.float32), OUT_RATE) == 0
    assert len(silence(20)) == 480


def test_parts_cut_after_punctuation() -> None:
    words = [f"w{i}" + ("," if i == 7 else "") for i in range(30)]
    runs = parts(words, 12, 10)
    assert [w for run in runs for w in run] == words
    assert len(runs[0]) == 8
    assert all(len(run) <= 12 for run in runs)
    assert parts(["a"], 12, 10) == [["a"]]
