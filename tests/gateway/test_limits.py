"""Token buckets: how often, of whom, and how much is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.limits import MAX_NAMES, Rate, neighbourhood

pytestmark = pytest.mark.unit


class Time:
    def __init__(self) -> None:
        self.s = 50.0

    def __call__(self) -> float:
        return self.s


def test_as_many_at_once_and_then_at_the_rate() -> None:
    time = Time()
    rate = Rate(6, time)
    assert [rate.take("a") for _ in range(6)] == [0.0] * 6
    assert rate.take("a") == pytest.approx(10.0)
    assert rate.wait_s("a") == pytest.approx(10.0)
    assert rate.take("b") == 0.0
    time.s += 9.9
    assert rate.take("a") > 0
    time.s += 0.2
    assert rate.take("a") == 0.0
    assert rate.take("a") > 0


def test_another_rate_holds_for_who_is_known_too() -> None:
    time = Time()
    rate = Rate(6, time)
    assert [rate.take("a") for _ in range(6)] == [0.0] * 6
    rate.change(60)
    assert rate.take("a") == pytest.approx(1.0)
    time.s += 90.0
    rate.change(2)
    assert [rate.take("a") > 0 for _ in range(3)] == [False, False, True], "no more than it allows"
    rate.change(0)
    assert rate.take("a") == 0.0


def test_asking_does_not_count_and_zero_is_no_limit() -> None:
    rate = Rate(1, Time())
    assert [rate.wait_s("a") for _ in range(5)] == [0.0] * 5
    assert rate.take("a") == 0.0
    free = Rate(0, Time())
    assert not any(free.take("a") for _ in range(1000))
    assert len(free) == 0


def test_memory_is_bounded() -> None:
    time = Time()
    rate = Rate(1, time)
    for n in range(MAX_NAMES + 100):
        rate.take(str(n))
    assert len(rate) == MAX_NAMES
    assert rate.take(str(MAX_NAMES)) > 0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.integers(1, 50))
def test_never_more_than_burst_and_rate_allow(waits: list[float], per_minute: int) -> None:
    time = Time()
    rate = Rate(per_minute, time)
    passed = 0
    for wait in waits:
        time.s += wait
        passed += rate.take("a") == 0.0
    assert passed <= per_minute + sum(waits) * per_minute / 60 + 1e-6


def test_who_is_one_person() -> None:
    assert neighbourhood("192.0.2.7") == "192.0.2.7"
    assert neighbourhood("::ffff:192.0.2.7") == "192.0.2.7"
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::2:3")
    assert neighbourhood("2001:db8:0:1::1") != neighbourhood("2001:db8::1")
    assert neighbourhood("fe80::1%eth0") == "fe80::/64"
    assert neighbourhood("testclient") == "testclient"
