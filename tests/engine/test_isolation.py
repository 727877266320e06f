"""A burst of newcomers worth twice the memory takes nothing from a call that is live."""

from __future__ import annotations

import pytest

from engine.request import FinishReason, Request
from tests.engine.fakes import Recorder, Sim
from tests.engine.test_playback import STEP_MS, world

pytestmark = pytest.mark.unit

BLOCKS, SIZE = 256, 16
TURNS, WORDS, REPLY = 3, 40, 60
"""Of the live call before: turns, tokens a turn and a reply."""
NEWCOMERS, PROMPT = 64, 120
"""64 * 120 tokens and their replies: over twice what the memory holds."""
AHEAD_S = 2.0
LAST = 1
"""Token of a reply: it is known and was never computed."""


class LiveCall:
    """Its turns follow each other, each pinned under the call's key as a session pins it."""

    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.history: list[int] = []
        self.gaps_s: list[float] = []
        self.missed: list[int] = []
        """Tokens of each turn's prompt known from the turn before that had to be computed again."""

    def turn(self) -> None:
        known = len(self.history)
        self.history += [3 + (known + i) % 900 for i in range(WORDS)]
        request, sink = self.sim.submit(
            self.history, REPLY, call="live", pin_key="call:live", pin_ttl_s=600.0
        )
        self.listen(request, sink)
        self.missed.append(max(0, known - LAST - request.cached_tokens))
        self.history += sink.tokens
        assert sink.finish is FinishReason.LENGTH

    def listen(self, request: Request, sink: Recorder) -> None:
        heard, at_s = 0, self.sim.clock.now()
        while sink.finish is None:
            self.sim.step()
            now = self.sim.clock.now()
            if len(sink.tokens) > heard:
                if heard:
                    self.gaps_s.append(now - at_s)
                heard, at_s = len(sink.tokens), now
                self.sim.loop.post_deadline(request.id, now + AHEAD_S)


def live_call(sim: Sim) -> LiveCall:
    call = LiveCall(sim)
    for _ in range(TURNS):
        call.turn()
    return call


def burst(sim: Sim) -> list[Recorder]:
    made = [
        sim.submit([5, n, *range(7, 7 + PROMPT - 2)], 20, call=f"new {n}", deadline_in_s=0.6)
        for n in range(NEWCOMERS)
    ]
    wanted = sum(len(request.tokens) + request.max_new for request, _ in made)
    assert wanted >= 2 * BLOCKS * SIZE
    return [sink for _, sink in made]


@pytest.mark.parametrize("policy", ["deadline", "fcfs"])
def test_a_burst_of_newcomers_keeps_a_live_call_within_one_step_and_its_prefix(policy: str) -> None:
    quiet, busy = (world(policy, BLOCKS, 16) for _ in range(2))
    alone, beside = live_call(quiet), live_call(busy)
    alone.gaps_s.clear()
    beside.gaps_s.clear()
    alone.turn()
    sinks = burst(busy)
    beside.turn()
    assert beside.missed[-1] == 0, "all of the history was still there"
    if policy == "deadline":
        assert max(beside.gaps_s) <= max(alone.gaps_s) + STEP_MS / 1000.0 + 1e-9
    busy.run(limit=20_000)
    assert {sink.finish for sink in sinks} == {FinishReason.LENGTH}
    assert busy.scheduler.counters.preemptions == 0
    beside.turn()
    assert beside.missed[-1] == 0


def test_between_its_turns_a_live_call_keeps_its_prefix_through_a_burst() -> None:
    """Nobody of it runs while the newcomers come: its pin alone holds what it has."""
    sim = world("deadline", BLOCKS, 16)
    call = live_call(sim)
    pinned = sim.kv.pins.n_blocks
    for _ in range(2):
        burst(sim)
        sim.run(limit=20_000)
        assert sim.kv.pins.n_blocks == pinned
    assert sim.kv.prefix.n_evicted > 0, "what the newcomers left made room"
    assert sim.kv.pins.n_refused == 0
    call.turn()
    assert call.missed[-1] == 0


def test_without_a_pin_the_same_burst_costs_the_call_its_prefix() -> None:
    """What the pin is for: the same world, and the same burst, without it."""
    sim = world("deadline", BLOCKS, 16)
    call = live_call(sim)
    sim.loop.post_unpin("call:live")
    burst(sim)
    sim.run(limit=20_000)
    call.turn()
    assert call.missed[-1] > 0
