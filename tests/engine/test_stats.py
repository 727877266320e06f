"""What the engine tells about itself, against what was done to it."""

from __future__ import annotations

import gc
import random

import pytest

from engine.budget import CostModel
from engine.gc_watch import GcWatch
from engine.stats import collect, histograms
from tests.engine.fakes import Sim
from tests.engine.test_loop import prompt_of
from tests.engine.test_playback import COST, world
from tests.engine.test_static import world as static_world

pytestmark = pytest.mark.unit


def stats(sim: Sim):
    return collect(sim.loop, GcWatch(), 0)


def seed_workload(sim: Sim) -> None:
    """32 calls that come in bursts: a shared system prompt of 200 tokens, replies of 20 to 300."""
    picks = random.Random(3)
    system = prompt_of(200)
    waiting = [picks.randint(20, 300) for _ in range(32)]
    sim.submit(system, prefill_only=True, pin_key="agent")
    sim.run()
    sim.loop.counters.kv_slots = sim.loop.counters.kv_slots_used = 0
    while waiting or sim.loop.has_work:
        if waiting and picks.random() < 0.05:
            for _ in range(min(len(waiting), picks.randint(2, 8))):
                unique = [picks.randint(1, 900) for _ in range(picks.randint(8, 24))]
                sim.submit([*system, *unique], waiting.pop())
        if not sim.step(check=False):
            sim.clock.time_s += 0.05


@pytest.mark.parametrize(("block_size", "most"), [(16, 4.0), (32, 8.0)])
def test_the_seeds_workload_wastes_few_slots(block_size, most):
    sim = Sim(
        4000, block_size=block_size, cost=CostModel(1.0, 0.1), step_s=0.02, max_num_seqs=32,
        max_num_batched_tokens=512,
    )  # fmt: skip
    sim.runner = sim.loop._runner = world("deadline", 1, 1).runner
    sim.runner.clock = sim.clock
    seed_workload(sim)
    told = stats(sim)
    assert 0.5 < told.kv_waste_percent < most
    assert told.hit_rate > 0.8
    assert told.finished_total == 33


def test_static_batching_wastes_most_of_what_it_reserves():
    sim = static_world(n_blocks=128)
    for n in range(4):
        sim.submit(prompt_of(5, salt=n), 6)
    sim.run()
    assert stats(sim).kv_waste_percent > 80.0


def test_times_are_kept_per_class():
    sim = Sim(step_s=0.0)
    sim.clock.time_s = 50.0
    run = sim.runner.run

    def slow(rows):
        sim.clock.time_s += 0.03
        return run(rows)

    sim.runner.run = slow
    sim.submit(prompt_of(5), 4)
    sim.submit(prompt_of(5, salt=1), 3, background=True)
    sim.run()
    told = histograms(sim.loop)
    assert {name: h.n for name, h in told["ttft_seconds"].items()} == {"live": 1, "background": 1}
    gaps = told["token_gap_seconds"]
    assert {name: h.n for name, h in gaps.items()} == {"live": 3, "background": 2}
    assert gaps["live"].total == pytest.approx(0.09)
    assert stats(sim).token_gap_live_ms_p50 == pytest.approx(30.0, abs=10.0)


def test_the_first_text_counts_and_not_the_first_token():
    class Late:
        stopped = False
        n = 0

        def push(self, token):
            self.n += 1
            return "" if self.n < 3 else "abc"

        def finish(self):
            return ""

    sim = Sim(step_s=0.1)
    sim.loop._make_text = lambda request: Late()
    sim.submit(prompt_of(4), 5)
    sim.run()
    (ttft,) = [h for h in histograms(sim.loop)["ttft_seconds"].values() if h.n]
    assert ttft.total == pytest.approx(0.2), "two steps later"


def test_rates_and_peaks():
    sim = Sim(max_num_seqs=2)
    pairs = [sim.submit(prompt_of(9, salt=n % 2), 6) for n in range(6)]
    sim.step()
    sim.loop.post_abort(pairs[5][0].id)
    sim.loop.post_abort(pairs[0][0].id)
    sim.run()
    told = stats(sim)
    assert told.waiting_peak == 6
    assert told.cancellation_rate == pytest.approx(2 / 6)
    assert told.hit_rate == pytest.approx(told.cached_tokens_total / told.prompt_tokens_total)
    assert 0.0 < told.hit_rate < 1.0
    assert told.abort_steps_max <= 2
    assert told.pinned_evictions_total == 0


def test_a_steps_time_is_told_against_the_best_of_warm_up():
    sim = world("deadline", 100, 4)
    sim.runner.cost = COST.scaled(2.0)  # twice what was fitted
    sim.submit([1, 2, 3], 40)
    sim.run()
    assert stats(sim).step_over_floor_p50 == pytest.approx(2.0)


def test_collections_are_counted_between_start_and_stop():
    watch = GcWatch()
    gc.collect()
    assert watch.n == 0
    watch.start()
    watch.start()
    gc.collect()
    watch.stop()
    watch.stop()
    gc.collect()
    assert watch.n == 1
    assert 0.0 < watch.longest_s == watch.total_s
