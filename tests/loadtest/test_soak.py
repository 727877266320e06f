"""What a soak run is judged by."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.scenario import load_scenario
from loadtest.soak import bad, memory_slope
from loadtest.watch import Sample

pytestmark = pytest.mark.unit

GOOD: dict[str, Any] = {"memory_grows": False, "stuck": 0, "failed": [], "lost": []}


def test_a_quiet_run_is_good() -> None:
    assert bad(GOOD) == []


@pytest.mark.parametrize(
    ("what", "value"),
    [("memory_grows", True), ("stuck", 1), ("failed", ["HTTP 500"]), ("lost", ["1006"])],
)
def test_growth_silence_and_broken_calls_are_not(what: str, value: Any) -> None:
    assert len(bad(GOOD | {what: value})) == 1


def samples(mb_per_s: float, gone: int = 0) -> list[Sample]:
    """Three minutes; the first third climbs by itself, as a start does."""
    out = []
    for t in range(180):
        mb = 900.0 + min(t, 60) * 2.0 + mb_per_s * t + (t * 7919 % 13) / 10
        out.append(Sample(float(t), None, None if t < gone else mb, {}))
    return out


def test_the_start_is_no_growth_and_a_leak_is() -> None:
    assert not memory_slope(samples(0.0), 180.0).grows
    found = memory_slope(samples(0.05), 180.0)
    assert found.grows
    assert found.low < 180.0 < found.high


def test_moments_without_a_process_are_left_out() -> None:
    assert not memory_slope(samples(0.0, gone=5), 180.0).grows
    with pytest.raises(ValueError, match="samples after"):
        memory_slope(samples(0.0, gone=180), 180.0)


def test_its_callers_come_and_go() -> None:
    assert all(group.call_s is not None for group in load_scenario("soak").callers)
