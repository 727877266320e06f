"""Load takes things in the declared order, at once, and gives them back one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.clock import ManualClock
from voice_agent.shedding import (
    AT,
    BACK_AT,
    BUSY,
    CALM_S,
    MOST_STRETCH,
    STRETCH,
    WORDS,
    Load,
    Shed,
    stretch,
)

pytestmark = pytest.mark.unit
TARGET_S = 0.6


class World:
    def __init__(self, most: Shed = Shed.REPLIES) -> None:
        self.clock = ManualClock(100.0)
        self.share = 0.0
        self.load = Load(self.clock, TARGET_S, lambda: self.share * TARGET_S, most)

    def at(self, share: float, after_s: float = 0.2) -> Shed:
        self.share = share
        self.clock.advance(after_s)
        return self.load.shed


def test_the_order_is_the_declared_one() -> None:
    assert list(AT) == [Shed.VOICE, Shed.LLM, Shed.CALLS, Shed.PARTIALS, Shed.REPLIES]
    assert list(AT.values()) == sorted(AT.values())
    assert set(WORDS) == set(Shed)


def test_each_step_is_taken_at_its_wait() -> None:
    world = World()
    seen = [world.at(share) for share in (0.4, 0.5, 1.0, 2.0, 3.0, 4.0)]
    assert seen == list(Shed)


def test_a_sudden_wait_takes_all_steps_up_to_its_own_at_once() -> None:
    world = World()
    assert world.at(3.5) is Shed.PARTIALS
    assert [world.load.taken[step] for step in AT] == [1, 1, 1, 1, 0]


def test_replies_are_shortened_only_where_it_is_allowed() -> None:
    assert World(Shed.PARTIALS).at(100.0) is Shed.PARTIALS
    assert World(Shed.REPLIES).at(100.0) is Shed.REPLIES


def test_partials_are_stretched_from_their_step_on() -> None:
    assert [stretch(shed) for shed in Shed] == [1.0] * 4 + [STRETCH] * 2


def test_partials_get_what_the_recogniser_has_free() -> None:
    assert [stretch(Shed.NOTHING, busy) for busy in (0.0, BUSY)] == [1.0, 1.0]
    assert stretch(Shed.NOTHING, 0.75) == pytest.approx(2.0), "half of what half a share leaves"
    assert stretch(Shed.NOTHING, 1.0) == MOST_STRETCH
    assert stretch(Shed.PARTIALS, 0.0) == STRETCH


def test_they_are_given_back_in_reverse_after_a_calm_each() -> None:
    world = World()
    world.at(10.0)
    seen = [world.load.shed]
    since_s = world.clock.now()
    while world.load.shed:
        shed = world.at(0.0, 0.1)
        if shed is not seen[-1]:
            seen.append(shed)
    assert seen == sorted(Shed, reverse=True)
    assert world.clock.now() - since_s >= CALM_S * (len(Shed) - 1)
    assert [change.after for change in world.load.changes] == [Shed.REPLIES, *seen[1:]]


@given(st.lists(st.floats(0.0, 6.0), max_size=60))
def test_whatever_the_waits_no_step_is_skipped_on_the_way_back(shares: list[float]) -> None:
    world, before, needed_s = World(), Shed.NOTHING, float("-inf")
    for share in shares:
        shed = world.at(share, 0.5)
        reached = max((s for s, at in AT.items() if share >= at), default=Shed.NOTHING)
        assert shed >= reached, "nothing is given back that is needed"
        assert shed >= before - 1
        if shed < before:
            assert world.clock.now() - needed_s >= CALM_S
        if shed > before or (before and share >= AT[before] * BACK_AT) or shed < before:
            needed_s = world.clock.now()
        before = shed


def test_the_gauges_tell_the_step_and_how_often_each_was_taken() -> None:
    world = World()
    world.at(1.2)
    gauges = world.load.gauges()
    assert gauges["load_step"] == 2.0
    assert gauges["load_llm_shed_total"] == 1.0
    assert gauges["load_calls_shed_total"] == 0.0
