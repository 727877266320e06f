"""Early work stops by load and by waste, in the declared order, and comes back later."""

from __future__ import annotations

import pytest

from voice_agent.clock import ManualClock
from voice_agent.early import Allowance, CallEarly, EarlyLimits, EarlyWork
from voice_agent.shedding import CALM_S, Load, Shed

pytestmark = pytest.mark.unit


class World:
    def __init__(self, **limits: float) -> None:
        self.clock = ManualClock(100.0)
        self.wait_s = 0.0
        load = Load(self.clock, 0.6, lambda: self.wait_s)
        self.shared = EarlyWork(EarlyLimits(**limits), load, self.clock)  # type: ignore[arg-type]
        self.call: CallEarly = self.shared.open_call()

    def allowed(self) -> tuple[bool, bool]:
        """(thinks, voices) now, 0.2 s later than before."""
        self.clock.advance(0.2)
        return not self.call.may_think(), not self.call.may_voice()


@pytest.fixture
def world() -> World:
    return World()


def test_load_stops_the_voice_first_and_then_the_model(world: World) -> None:
    seen = []
    for wait_s in (0.0, 0.2, 0.3, 0.6):
        world.wait_s = wait_s
        seen.append(world.allowed())
    assert seen == [(True, True), (True, True), (True, False), (False, False)]
    assert world.shared.refused == {"voice_load": 2, "llm_load": 1}


def test_it_comes_back_one_step_at_a_time_once_it_is_calm(world: World) -> None:
    world.wait_s = 1.0
    assert world.allowed() == (False, False)
    world.wait_s = 0.0
    steps = [world.shared.load.shed]
    since = world.clock.now()
    when = []
    while steps[-1]:
        world.clock.advance(0.1)
        if (shed := world.shared.load.shed) is not steps[-1]:
            steps.append(shed)
            when.append(world.clock.now() - since)
    assert steps == [Shed.LLM, Shed.VOICE, Shed.NOTHING]
    assert when[0] >= CALM_S - 0.2
    assert when[1] - when[0] >= CALM_S


def test_a_wait_between_the_two_marks_changes_nothing(world: World) -> None:
    world.wait_s = 0.4
    world.allowed()
    world.wait_s = 0.2  # below what stops the voice, above what brings it back
    for _ in range(100):
        world.clock.advance(0.2)
        assert world.shared.load.shed is Shed.VOICE


def test_a_call_that_wastes_too_much_stops_and_the_others_go_on(world: World) -> None:
    other = world.shared.open_call()
    world.call.wasted(tokens=599)
    assert not world.call.may_think()
    world.call.wasted(tokens=10)
    assert world.call.may_think() == "budget"
    assert not world.call.thinks
    assert not world.call.may_voice(), "tokens and voice have each their own"
    assert not other.may_think()
    world.clock.advance(29.0)
    assert world.call.may_think() == "budget", "half of it must have come back"
    world.clock.advance(2.0)
    assert not world.call.may_think()
    assert world.shared.gauges()["early_wasted_tokens_total"] == 609.0


def test_wasted_voice_has_a_budget_of_its_own(world: World) -> None:
    world.call.wasted(voice_s=31.0)
    assert not world.call.may_think()
    assert world.call.may_voice() == "budget"
    assert world.shared.gauges()["early_refused_voice_budget_total"] == 1.0


def test_switched_off_is_no_decision() -> None:
    world = World(llm=False, voice=False)
    assert (world.call.may_think(), world.call.may_voice()) == ("off", "off")
    assert not world.call.thinks
    assert not world.shared.refused


def test_an_allowance_of_nothing_is_never_open() -> None:
    clock = ManualClock()
    allowance = Allowance(0.0, clock)
    clock.advance(1e6)
    assert not allowance.open
