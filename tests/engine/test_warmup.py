from __future__ import annotations

import gc
import threading

import pytest

from engine.blocks import BlockPool
from engine.warmup import freeze_garbage, measure
from kernels import compile_watch
from tests.engine.fakes import HashRunner
from tests.engine.test_client import build

pytestmark = pytest.mark.unit


class TimedRunner(HashRunner):
    """Takes 10 ms and 0.25 ms a token of a clock that only it moves."""

    time_s = 0.0

    def run(self, rows):
        self.time_s += 0.010 + 0.00025 * sum(len(row.token_ids) for row in rows)
        return super().run(rows)


def test_finds_the_cost_of_a_step_and_gives_the_blocks_back():
    runner = TimedRunner(64, 4, max_model_len=300)
    pool = BlockPool(64)
    report = measure(
        runner, pool, max_num_seqs=8, max_num_batched_tokens=128, timer=lambda: runner.time_s
    )
    assert report.cost.base_ms == pytest.approx(10.0)
    assert report.cost.per_token_ms == pytest.approx(0.25)
    assert [n for n, _ in report.decode_ms] == [1, 2, 4, 8]
    assert [n for n, _ in report.prefill_ms] == [16, 64, 128]
    assert report.predict_decode_ms(1) == pytest.approx(10.25)
    assert report.predict_decode_ms(6) == pytest.approx(11.5)
    assert report.predict_prefill_ms(100) == pytest.approx(35.0)
    assert report.predict_prefill_ms(400) == pytest.approx(110.0)
    assert pool.n_free == 64
    pool.check()


def test_finds_what_attention_adds_a_position():
    class Attending(TimedRunner):
        def run(self, rows):
            self.time_s += sum(
                2.5e-7 * len(row.token_ids) * (row.start + len(row.token_ids) / 2) for row in rows
            )
            return super().run(rows)

    runner = Attending(512, 4, max_model_len=4000)
    report = measure(
        runner, BlockPool(512), max_num_seqs=8, max_num_batched_tokens=64,
        timer=lambda: runner.time_s,
    )  # fmt: skip
    assert report.cost.per_position == pytest.approx(0.001, rel=0.1)


def test_works_with_next_to_no_room():
    runner = TimedRunner(1, 4, max_model_len=9)
    report = measure(
        runner,
        BlockPool(1),
        max_num_seqs=8,
        max_num_batched_tokens=128,
        timer=lambda: runner.time_s,
    )
    assert [n for n, _ in report.decode_ms] == [1]
    assert [n for n, _ in report.prefill_ms] == [4]


def test_freeze_leaves_the_collector_working():
    threshold = gc.get_threshold()
    try:
        freeze_garbage()
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


def test_an_engine_plans_with_what_it_measured():
    threshold = gc.get_threshold()
    engine = build(start=False, max_num_batched_tokens=64)
    ran_on = set()
    run = engine._runner.run
    engine._runner.run = lambda rows: ran_on.add(threading.current_thread().name) or run(rows)
    try:
        report = engine.warm()
        assert ran_on == {"engine"}, "the thread that serves is the thread that was warmed"
        assert engine.warmup is report
        assert engine._scheduler.pace.budget.cost is report.cost
        assert engine.stats().kv_blocks_free == 128
        assert engine.stats().compiles_after_warmup_total == 0
        compile_watch.note("a kernel of the test")
        assert engine.stats().compiles_after_warmup_total == 1
    finally:
        engine.close()
        gc.unfreeze()
        gc.set_threshold(*threshold)
