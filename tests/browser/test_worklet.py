"""The audio worklet of a call over the socket: rates, frames, delay and cuts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import gateway

pytestmark = pytest.mark.browser
HERE = Path(__file__).parent
WORKLET = Path(gateway.__file__).parent / "page" / "worklet.js"


def purity(signal: NDArray[np.float64], hz: float, rate: int) -> tuple[float, float]:
    """(amplitude of the tone, root mean square of everything else)."""
    t = np.arange(len(signal)) / rate
    basis = np.stack([np.sin(2 * np.pi * hz * t), np.cos(2 * np.pi * hz * t)], 1)
    weights, *_ = np.linalg.lstsq(basis, signal, rcond=None)
    rest = signal - basis @ weights
    return float(np.hypot(*weights)), float(np.sqrt(np.mean(rest**2)))


@pytest.mark.parametrize("rate", [48_000, 44_100, 16_000])
def test_sound_both_ways(node: str, rate: int) -> None:
    done = subprocess.run(
        [node, str(HERE / "worklet.mjs"), str(WORKLET), json.dumps({"rate": rate})],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    saw = json.loads(done.stdout)

    assert set(saw["frames"]) == {320}
    assert len(saw["heard"]) >= 16_000 - 2 * 320, "sixteen thousand samples of every second"
    amplitude, rest = purity(np.array(saw["heard"][1000:], float), 1000.0, 16_000)
    assert amplitude == pytest.approx(0.5 * 32_767, rel=0.01)
    assert rest < 0.002 * amplitude

    played = np.array(saw["played"])
    n = round(0.2 * rate)
    amplitude, rest = purity(played[200 : n - 200], 500.0, rate)
    assert amplitude == pytest.approx(16_000 / 32_768, rel=0.01)
    assert rest < 0.002 * amplitude
    assert not played[n + 2 :].any(), "silence once everything is played"
    assert saw["waited"]["arrived"] == 10
    assert saw["waited"]["waited_s"] == pytest.approx(sum(0.02 * k for k in range(1, 11)), rel=0.01)

    cut, fade = np.array(saw["cut"]), round(0.005 * rate) + 1
    assert np.abs(cut[:128]).max() > 0.1
    assert not cut[128 + fade :].any(), "what waited is thrown away"
    assert np.abs(np.diff(cut)).max() < 0.1, "and without a click"
    assert saw["messages"] == len(saw["frames"]), "without a microphone nothing is sent"
    assert saw["longest_s"] == pytest.approx(10.0, rel=0.11)
