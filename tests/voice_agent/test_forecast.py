"""Who is let in while nothing is measured yet, and once it is: the real forecast, made-up work."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission import Admission, judge
from voice_agent.choose import CYCLE_S, MAX_LOAD
from voice_agent.clock import ManualClock
from voice_agent.forecast import BESIDE, FINAL_S, PASSES, Forecast, Processors
from voice_agent.outlook import FULL
from voice_agent.service_time import ServiceTime
from voice_agent.shedding import Shed

pytestmark = pytest.mark.unit

STEP_S = 0.25
SILENT_S = 3.0
"""A caller has said nothing that is worth a pass for so long."""
LIMIT_S = 1e6
"""Waits are not what is judged here."""


class World:
    """A recogniser of which each caller takes `share`; `told` is what its service time says."""

    def __init__(self, share: float, told: float, processors: float = 0.0) -> None:
        self.clock, self.share = ManualClock(), share
        self.came_s: list[float] = []
        service = ServiceTime(told * CYCLE_S / PASSES)
        assert service.seconds(FINAL_S) > 0.0
        self.recognizer = SimpleNamespace(busy_s=0.0, workers=1, service=service, wait_s=0.0)
        self.vad = SimpleNamespace(n_open=0, busy_s=0.0, calls=0)
        stack: Any = SimpleNamespace(
            clock=self.clock, vad=self.vad, recognizer=self.recognizer, engine=None, voices=None
        )
        shared = Processors(processors, lambda: BESIDE * self.recognizer.busy_s)
        self.forecast = Forecast(stack, shared if processors else None)
        self.admission = Admission(
            10_000,
            forecast=lambda live: judge(self.forecast.outlook(live), Shed.NOTHING, LIMIT_S),
            clock=self.clock,
        )

    def knock(self) -> bool:
        if self.admission.why_not("") is not None:
            return False
        self.admission.keep("")
        self.came_s.append(self.clock.now())
        self.vad.n_open += 1
        return True

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            now = self.clock.now()
            speaking = sum(now - came_s > SILENT_S for came_s in self.came_s)
            busy = min(1.0, speaking * self.share)
            self.recognizer.busy_s += busy * STEP_S
            if now % 1.0 == 0.0:
                self.forecast.look()

    @property
    def holds(self) -> int:
        return math.floor(FULL / self.share)


SHARES = st.floats(0.02, 0.09)


@settings(max_examples=25, deadline=None)
@given(SHARES, st.floats(0.95, 1.3), st.integers(20, 200), st.floats(0.0, 20.0))
def test_a_burst_on_a_cold_server_does_not_overfill_it(
    share: float, told: float, calls: int, over_s: float
) -> None:
    """Every caller who is let in counts at once, with what a caller takes by the service times;
    where those tell too little, by what the first of the burst were seen to take."""
    world = World(share, share * told)
    world.run(5.0)
    for _ in range(calls):
        world.knock()
        world.run(math.ceil(over_s / calls / STEP_S) * STEP_S)
    assert len(world.came_s) <= 1.1 * world.holds
    assert len(world.came_s) >= min(calls, math.floor(0.85 * world.holds / max(1.0, told)) - 1)


@settings(max_examples=8, deadline=None)
@given(SHARES, st.floats(0.6, 1.6))
def test_one_caller_after_the_other_fills_it_whatever_was_expected(
    share: float, told: float
) -> None:
    world = World(share, share * told)
    for _ in range(3 * world.holds):
        world.knock()
        world.run(10.0)
    assert 0.9 * world.holds - 1 <= len(world.came_s) <= 1.1 * world.holds


def test_a_burst_after_others_have_been_there_is_judged_by_them() -> None:
    """Callers here take half of what was expected, and that is known by now."""
    world = World(0.03, 0.06)
    for _ in range(8):
        world.knock()
        world.run(30.0)
    world.run(300.0)
    while world.knock():
        pass
    assert 0.9 * world.holds <= len(world.came_s) <= 1.1 * world.holds


def test_what_all_stages_share_may_fill_first() -> None:
    world = World(0.04, 0.04, processors=0.8)
    while world.knock():
        pass
    assert len(world.came_s) == math.floor(MAX_LOAD / (0.04 * BESIDE / 0.8))
    assert len(world.came_s) < world.holds


def test_what_is_prepared_before_the_first_call_is_no_callers() -> None:
    world = World(0.04, 0.04)
    world.recognizer.busy_s += 5.0
    world.run(60.0)
    while world.knock():
        pass
    assert len(world.came_s) == world.holds
