"""Service times are learnt, follow the machine, and are never absurd."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.service_time import CAP, MEMORY, ServiceTime, ServiceTimes

pytestmark = pytest.mark.unit

SIZES = (0.5, 3.0, 1.0, 8.0, 2.0)


def taught(base_s: float, per_s: float, n: int = 40, start: ServiceTime | None = None):
    model = start or ServiceTime()
    for i in range(n):
        size = SIZES[i % len(SIZES)]
        model.note(base_s + per_s * size, size)
    return model


def test_before_anything_is_known_it_says_what_it_was_given():
    assert ServiceTime(0.2).seconds(5.0) == 0.2


def test_a_base_and_what_grows_with_the_size_are_told_apart():
    model = taught(0.05, 0.02)
    assert model.seconds(0.0) == pytest.approx(0.05)
    assert model.seconds(20.0) == pytest.approx(0.45)


def test_it_follows_a_machine_that_gets_slower_and_faster_again():
    model = taught(0.05, 0.02)
    taught(0.1, 0.04, 200, model)
    assert model.seconds(3.0) == pytest.approx(0.22, rel=0.05)
    taught(0.05, 0.02, 200, model)
    assert model.seconds(3.0) == pytest.approx(0.11, rel=0.05)


def test_one_stall_moves_it_by_little():
    model = taught(0.1, 0.0)
    model.note(10.0, 1.0)
    assert model.seconds(1.0) <= 0.1 * (1.0 + 2.0 * CAP / MEMORY) + 1e-9


def test_kinds_are_learnt_apart():
    times = ServiceTimes(0.1)
    for _ in range(9):
        times["quick"].note(0.02)
        times["slow"].note(0.9)
    assert times["quick"].seconds() == pytest.approx(0.02)
    assert times["slow"].seconds() == pytest.approx(0.9)
    assert times["unheard of"].seconds() == 0.1
    assert sorted(times) == ["quick", "slow", "unheard of"]


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 30.0)), max_size=80))
def test_whatever_it_is_told_it_predicts_within_what_it_saw(noted):
    model = ServiceTime()
    for took_s, size in noted:
        model.note(took_s, size)
    most = max((took_s for took_s, _ in noted), default=0.0)
    largest = max((size for _, size in noted), default=0.0)
    assert 0.0 <= model.seconds(0.0) <= most + 1e-6
    assert model.seconds(largest) >= model.seconds(0.0) - 1e-9
