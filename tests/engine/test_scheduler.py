"""Who gets which step, in virtual time: a step takes what the cost model says."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.budget import CostModel
from engine.config import EngineConfig
from engine.kvcache import KvCache
from engine.plan import StepPlan
from engine.request import Request
from engine.sampling import SamplingParams
from engine.scheduler import Scheduler
from tests.engine.fakes import HashRunner, Recorder, Sim, expected

pytestmark = pytest.mark.unit

TOKEN_S = 0.25
"""Speech made by one token."""
GPU = CostModel(8.0, 0.05)
CPU = CostModel(18.0, 0.94)


class TimedRunner(HashRunner):
    """Moves the clock by the cost of each step."""

    clock = None
    cost = CPU
    longest_ms = 0.0

    def run(self, rows):
        ms = self.cost.ms(sum(len(row.token_ids) for row in rows))
        self.longest_ms = max(self.longest_ms, ms)
        self.clock.time_s += ms / 1000.0
        return super().run(rows)


@dataclass
class Caller:
    """Hears tokens at speaking pace once the first has come, and tells the engine its slack."""

    request: Request
    sink: Recorder
    asked_s: float
    dry_s: float | None = None
    underruns: int = 0
    first_s: float = 0.0
    _heard: int = field(default=0)

    def listen(self, sim: Sim) -> None:
        now, n = sim.clock.now(), len(self.sink.tokens)
        if n == self._heard:
            return
        if self.dry_s is None:
            self.dry_s, self.first_s = now, now - self.asked_s
        elif now > self.dry_s:
            self.underruns += 1
            self.dry_s = now
        self.dry_s += TOKEN_S * (n - self._heard)
        self._heard = n
        sim.loop.post_deadline(self.request.id, self.dry_s)


def world(cost: CostModel, **options) -> Sim:
    options = {"max_num_seqs": 32, "min_prefill_tokens": 16, **options}
    runner = TimedRunner(2000, 16, max_model_len=2000)
    sim = Sim(2000, block_size=16, runner=runner, cost=cost, step_s=0.0, **options)
    runner.clock, runner.cost, runner.keep_batches = sim.clock, cost, False
    return sim


def call(sim: Sim, n_prompt: int, salt: int, max_tokens: int = 40) -> Caller:
    prompt = [1 + (salt * 97 + i * 13) % 900 for i in range(n_prompt)]
    request, sink = sim.submit(prompt, max_tokens)
    return Caller(request, sink, sim.clock.now())


def play(sim: Sim, callers: list[Caller], limit: int = 20_000) -> None:
    for _ in range(limit):
        if not sim.loop.has_work and not sim.loop._inbox.submits:
            return
        sim.step(check=False)
        for caller in callers:
            caller.listen(sim)
    raise AssertionError("never ended")


@pytest.mark.parametrize(("cost", "max_step_ms"), [(GPU, 30.0), (CPU, 80.0)])
def test_twenty_arrivals_at_once_make_no_hole_in_eight_voices(cost, max_step_ms):
    sim = world(cost, max_step_ms=max_step_ms, idle_step_ms=max_step_ms)
    speakers = [call(sim, 30, n, 60) for n in range(8)]
    while any(len(caller.sink.tokens) < 3 for caller in speakers):
        sim.step(check=False)
        for caller in speakers:
            caller.listen(sim)
    arrivals = [call(sim, 200, 100 + n, 20) for n in range(20)]
    play(sim, speakers + arrivals)
    assert sum(caller.underruns for caller in speakers) == 0
    assert sim.runner.longest_ms <= max_step_ms
    for caller in speakers + arrivals:
        request = caller.request
        assert request.tokens[request.n_prompt :] == caller.sink.tokens
        assert len(caller.sink.tokens) == request.max_new


def test_a_long_prompt_amid_speaking_calls_adds_one_step_to_their_gaps():
    sim = world(CPU, max_step_ms=80.0)
    speakers = [call(sim, 20, n, 80) for n in range(6)]
    while any(len(caller.sink.tokens) < 2 for caller in speakers):
        sim.step(check=False)
    gaps, last = [], {caller.request.id: sim.clock.now() for caller in speakers}
    seen = {caller.request.id: len(caller.sink.tokens) for caller in speakers}
    long_one = call(sim, 1500, 99, 2)
    while not long_one.sink.tokens and sim.loop.has_work:
        sim.step(check=False)
        for caller in speakers:
            n = len(caller.sink.tokens)
            if n > seen[caller.request.id]:
                gaps.append(sim.clock.now() - last[caller.request.id])
                last[caller.request.id], seen[caller.request.id] = sim.clock.now(), n
    assert max(gaps) <= 0.0801
    sim.run()
    assert long_one.sink.tokens == expected(long_one.request.tokens[:1500], 2)


def test_the_urgent_newcomer_goes_before_the_long_prompt_that_came_first():
    sim = world(CPU)
    long_one = call(sim, 1200, 1, 2)
    sim.step(check=False)
    urgent = call(sim, 40, 2, 2)
    play(sim, [long_one, urgent])
    assert urgent.first_s < 0.3
    assert long_one.first_s > 0.9


def test_first_come_first_served_makes_the_newcomer_wait():
    sim = world(CPU, scheduling_policy="fcfs")
    long_one = call(sim, 1200, 1, 2)
    sim.step(check=False)
    urgent = call(sim, 40, 2, 2)
    play(sim, [long_one, urgent])
    assert urgent.first_s > 0.9


def test_whoever_waits_is_served_within_a_bound():
    """More live work than fits, for a long time: the oldest still gets through."""
    sim = world(CPU, max_num_seqs=4)
    callers = []
    for n in range(120):
        callers.append(call(sim, 20 + n % 60, n, 6))
        for _ in range(3):
            sim.step(check=False)
            for caller in callers:
                caller.listen(sim)
    play(sim, callers)
    waits = sorted(caller.first_s for caller in callers)
    assert waits[-1] < 4 * waits[len(waits) // 2] + 1.0


def test_a_long_cached_context_is_not_taken_for_late():
    sim = world(CPU)
    first = call(sim, 1000, 1, 10)
    play(sim, [first])
    assert sim.scheduler.counters.missed_deadlines == 1, "cold, it could not be in time"
    request, sink = sim.submit([*first.request.tokens, 5, 6, 7], 4)
    again = Caller(request, sink, sim.clock.now())
    play(sim, [again])
    assert sink.cached == 1009
    assert sim.scheduler.counters.missed_deadlines == 1
    assert again.first_s < 0.1


def test_a_pin_gives_way_to_a_running_request_that_nothing_else_can_help():
    sim = Sim(n_blocks=16, admission_growth=0.0)
    sim.submit([7] * 30, prefill_only=True, pin_key="idle")
    sim.run()
    _, sink = sim.submit([1, 2, 3, 4], 50)
    sim.run()
    assert sink.tokens == expected([1, 2, 3, 4], 50)
    assert sim.kv.pins.n_lapsed == 1
    assert sim.scheduler.counters.preemptions == 0


def test_nobody_is_preempted_for_blocks_that_are_on_their_way():
    sim = Sim(n_blocks=12, admission_growth=0.0, max_num_seqs=3, prefix_cache="none")
    for n in range(3):
        sim.submit([10 + n] * 15, 20)
    for _ in range(2):
        sim.step()
    assert (sim.scheduler.n_running, sim.kv.pool.n_free) == (3, 0)
    step = sim.kv.pool.launch()  # as if a step were still running
    sim.loop.post_abort(3)
    sim.loop._take_inbox(sim.clock.now())
    assert sim.kv.pool.n_fenced == 4
    plan = sim.scheduler.plan(sim.clock.now())
    assert plan.tokens == {}
    assert sim.scheduler.counters.preemptions == 0
    sim.kv.pool.retire(step)
    assert sim.scheduler.plan(sim.clock.now()).tokens == {1: 1, 2: 1}


def test_who_did_not_fit_is_admitted_as_soon_as_somebody_ends():
    sim = Sim(n_blocks=16)  # 64 tokens
    first, _ = sim.submit([7] * 10, 30)
    _, second = sim.submit([8] * 10, 30)
    _, third = sim.submit([9] * 10, 30)
    for _ in range(5):
        sim.step()
    assert sim.scheduler.n_running == 1
    sim.loop.post_abort(first.id)
    sim.step()
    assert len(second.tokens) + len(third.tokens) == 1
    sim.run()
    assert third.tokens == expected([9] * 10, 30)


def test_priority_goes_before_arrival():
    sim = world(CPU, scheduling_policy="priority", max_num_seqs=2)
    for n in range(2):
        call(sim, 20, n, 30)
    sim.step(check=False)
    callers = []
    for n, priority in enumerate([3, 1, 2, 1]):
        request, sink = sim.submit([50 + n] * 20, 4, priority=priority)
        callers.append(Caller(request, sink, sim.clock.now()))
    play(sim, callers)
    firsts = [caller.asked_s + caller.first_s for caller in callers]
    assert sorted(range(4), key=lambda n: firsts[n])[:2] == [1, 3]
    assert max(range(4), key=lambda n: firsts[n]) == 0


def planning_s(n: int, kind: str) -> float:
    """CPU seconds of one plan with n open requests; the least of several."""
    running = n if kind == "decode" else n // 2
    slots, blocks = (n, n) if kind == "half of them without memory" else (running, n * 3)
    config = EngineConfig(
        Path("fake"), max_num_seqs=slots, max_num_batched_tokens=8192, max_step_ms=100.0
    )
    kv = KvCache(blocks, 16, max_pinned=0)
    scheduler = Scheduler(config, kv, CostModel(8.0, 0.005))
    for i in range(n):
        scheduler.add(
            Request(
                i, [1 + i % 900, 2 + i // 900, 3], SamplingParams(), seed=0, max_new=20,
                arrival_s=0.0, deadline_s=1.0 + i % 7,
            ),
            0.0,
        )  # fmt: skip
    best, now = math.inf, 0.0
    while scheduler.n_running < running:
        advance(scheduler, scheduler.plan(now))
    for request in scheduler.running():
        scheduler.set_deadline(request.id, 2.0 + request.id % 5)
    for _ in range(7):
        now += 0.01
        started = time.process_time()
        plan = scheduler.plan(now)
        best = min(best, time.process_time() - started)
        assert len(plan.tokens) == running
        advance(scheduler, plan)
    return best


def advance(scheduler: Scheduler, plan: StepPlan) -> None:
    for request_id, n in plan.tokens.items():
        request = scheduler.requests[request_id]
        scheduler.advance(request, n)
        request.tokens.append(5)


@pytest.mark.parametrize("kind", ["decode", "half of them waiting", "half of them without memory"])
def test_planning_grows_linearly_with_the_requests(kind):
    """Sixteen times the requests, up to 4096: less than twice the time for each."""
    small, large = planning_s(256, kind), planning_s(4096, kind)
    assert large < 2 * 16 * small + 0.002
