"""A sweep over callers is good: throughput stays at its peak, medians grow as the callers do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadtest.bench.tts import CallerFigures, judged

pytestmark = pytest.mark.unit

ONE = CallerFigures(1, 80.0, 90.0, 200.0, 210.0, 10.0, 0, 0.9, 500.0)


def rows(rates: list[float], growth: float = 1.0) -> list[CallerFigures]:
    return [
        replace(
            ONE,
            callers=2**i,
            audio_s_per_s=rate,
            first_ms_median=80.0 * (2**i) ** growth,
            whole_ms_median=200.0 * (2**i) ** growth,
        )
        for i, rate in enumerate(rates)
    ]


def test_throughput_that_stays_is_good() -> None:
    assert judged(rows([10.0, 10.5, 10.4, 10.6, 10.5])).good


def test_throughput_that_falls_past_its_peak_is_not() -> None:
    sweep = judged(rows([10.0, 10.5, 12.0, 9.0, 9.5]))
    assert sweep.kept == pytest.approx(0.75)
    assert not sweep.good


def test_a_rise_before_the_peak_does_not_count() -> None:
    assert judged(rows([5.0, 9.0, 12.0, 12.0, 12.0])).kept == pytest.approx(1.0)


def test_waits_that_grow_faster_than_the_callers_are_not_good() -> None:
    steep = judged(rows([10.0] * 5, growth=1.3))
    assert steep.growth == pytest.approx(16**0.3)
    assert not steep.good
    assert judged(rows([10.0] * 5, growth=0.7)).good
