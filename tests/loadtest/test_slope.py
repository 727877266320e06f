"""A slope is called growth only where the scatter does not explain it."""

from __future__ import annotations

import random

import pytest

from loadtest.slope import slope, student_t

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("p", "freedom", "known"),
    [(0.975, 10, 2.228), (0.995, 10, 3.169), (0.995, 4, 4.604), (0.995, 60, 2.660)],
)
def test_students_quantile(p: float, freedom: int, known: float) -> None:
    assert student_t(p, freedom) == pytest.approx(known, rel=0.02)


def walk(seed: int, drift_per_hour: float = 0.0) -> tuple[list[float], list[float]]:
    """An hour of memory that wanders about its level, each sample close to the one before."""
    rng, level = random.Random(seed), 0.0
    times = [float(t) for t in range(0, 3600, 5)]
    values = []
    for t in times:
        level = 0.9 * level + rng.gauss(0.0, 0.5)
        values.append(900.0 + level + drift_per_hour * t / 3600.0)
    return times, values


def test_a_leak_is_found_and_measured() -> None:
    found = slope(*walk(1, drift_per_hour=20.0), warm_up_s=300.0)
    assert found.grows
    assert found.low < 20.0 < found.high


def test_scatter_alone_is_hardly_ever_growth() -> None:
    grown = [slope(*walk(seed), warm_up_s=300.0).grows for seed in range(100)]
    assert sum(grown) <= 4, "one sided, half a percent of them; samples depend on each other"


def test_what_warms_up_is_no_leak() -> None:
    times, values = walk(2)
    values = [v + 30.0 * min(1.0, t / 1800.0) for t, v in zip(times, values, strict=True)]
    assert slope(times, values, warm_up_s=0.0).grows
    assert not slope(times, values, warm_up_s=1800.0).grows


def test_shrinking_is_no_growth() -> None:
    assert not slope(*walk(3, drift_per_hour=-50.0), warm_up_s=0.0).grows


@pytest.mark.parametrize("n", [0, 3, 11])
def test_too_few_samples_say_nothing(n: int) -> None:
    with pytest.raises(ValueError, match="stretches"):
        slope([float(t) for t in range(n)], [1.0] * n, warm_up_s=0.0)


def test_a_gap_in_the_samples_is_told() -> None:
    times = [*map(float, range(100)), 1000.0]
    with pytest.raises(ValueError, match="without a sample"):
        slope(times, [1.0] * len(times), warm_up_s=0.0)


def with_steps(
    *at: float, seed: int = 4, drift_per_hour: float = 0.0
) -> tuple[list[float], list[float]]:
    """An hour in which a library's buffer grows by 30 each time."""
    times, values = walk(seed, drift_per_hour)
    steps = [30.0 * sum(t >= moment for moment in at) for t in times]
    return times, [v + s for v, s in zip(values, steps, strict=True)]


@pytest.mark.parametrize("at", [(1000.0,), (1800.0,), (2500.0,), (3300.0,)])
def test_a_step_is_no_slope(at: tuple[float, ...]) -> None:
    found = [slope(*with_steps(*at, seed=seed), warm_up_s=0.0) for seed in range(50)]
    assert sum(one.grows for one in found) <= 3
    assert sum(len(one.steps) == len(at) for one in found) >= 45


def test_what_steps_again_and_again_grows() -> None:
    assert slope(*with_steps(600.0, 1600.0, 2500.0), warm_up_s=0.0).grows


def test_a_leak_is_found_behind_a_step() -> None:
    found = slope(*with_steps(1700.0, drift_per_hour=40.0), warm_up_s=0.0)
    assert found.grows
    assert found.low < 40.0 < found.high


def test_a_count_that_rises_once_is_a_step_and_one_that_goes_on_grows() -> None:
    times = [float(t) for t in range(0, 1200, 10)]
    assert not slope(times, [9.0 + (t > 500) for t in times], warm_up_s=0.0).grows
    assert slope(times, [9.0 + t // 300 for t in times], warm_up_s=0.0).grows


def test_what_something_else_explains_is_no_growth() -> None:
    times, values = walk(5)
    calls = [t // 500 for t in times]
    values = [v + 8.0 * n for v, n in zip(values, calls, strict=True)]
    assert slope(times, values, warm_up_s=0.0).grows
    assert not slope(times, values, warm_up_s=0.0, beside=calls).grows
    calls = [t // 500 % 3 for t in times]
    leak = [900.0 + 8.0 * n + 20.0 * t / 3600.0 for n, t in zip(calls, times, strict=True)]
    assert slope(times, leak, warm_up_s=0.0, beside=calls).grows
