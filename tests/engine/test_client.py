"""The real thread and a real event loop, around the hash model."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
from pathlib import Path

import pytest

from engine.client import Engine, FinishReason, Generation
from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.errors import CapacityError, InternalError, UsageError
from engine.request import Request
from engine.sampling import SamplingParams
from tests.engine.fakes import EOS, N_VOCAB, HashRunner, PlainText, expected

pytestmark = pytest.mark.unit


class GatedRunner(HashRunner):
    """Waits at the gate before every step, so that a test chooses what overlaps."""

    def __init__(self, *args, **kw) -> None:
        super().__init__(*args, **kw)
        self.gate = threading.Event()
        self.gate.set()
        self.pause_s = 0.0  # a step that takes time, so that something can happen during a reply

    def run(self, rows):
        assert self.gate.wait(10), "the test forgot the gate"
        time.sleep(self.pause_s)
        return super().run(rows)


def build(n_blocks=128, *, start=True, max_model_len=400, **options) -> Engine:
    config = EngineConfig(Path("fake"), block_size=4, **options)
    engine = Engine(
        config,
        GatedRunner(n_blocks, 4, max_model_len=max_model_len),
        tokenizer=None,
        chat=None,
        make_text=lambda request: PlainText(),
        eos_ids=frozenset({EOS}),
        n_vocab=N_VOCAB,
        clock=MonotonicClock(),
    )
    if start:
        engine.start()
    return engine


@contextlib.asynccontextmanager
async def running(**options):
    engine = build(**options)
    try:
        yield engine
    finally:
        engine._runner.gate.set()
        await asyncio.to_thread(engine.close)
        engine._loop.check()
        assert engine._kv.pool.n_held == len(set(engine._kv.pins.blocks()))
        assert engine.stats().integrity_failures_total == 0


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("never came true")


PROMPT = [5, 6, 7, 8, 9, 10]


async def test_streams_text_ids_and_usage():
    async with running() as engine:
        generation = engine.submit(PROMPT, SamplingParams(max_tokens=7, logprobs=0))
        deltas = [delta async for delta in generation]
        ids = [t for delta in deltas for t in delta.token_ids]
        assert ids == expected(PROMPT, 7)
        assert "".join(d.text for d in deltas) == "".join(f"<{t}>" for t in ids) + "."
        assert [d.finish for d in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].finish is FinishReason.LENGTH is generation.finish
        assert [len(d.logprobs) for d in deltas] == [len(d.token_ids) for d in deltas]
        usage = generation.usage
        assert (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens) == (6, 0, 7)
        again = engine.submit(PROMPT, SamplingParams(max_tokens=2))
        await again.collect()
        assert again.usage.cached_tokens == 5


async def test_many_at_once_each_get_their_own():
    async with running(n_blocks=400) as engine:
        prompts = [[1 + i, 2 + i * 3, 7, 7 + i] for i in range(30)]
        done = await asyncio.gather(
            *(engine.submit(p, SamplingParams(max_tokens=12)).collect() for p in prompts)
        )
        assert [list(d.token_ids) for d in done] == [expected(p, 12) for p in prompts]
        assert engine.stats().wakeups_total <= engine.stats().steps_total + 1


async def test_abort_stops_text_at_once_and_frees_the_blocks():
    async with running() as engine:
        engine._runner.pause_s = 0.02
        generation = engine.submit(PROMPT, SamplingParams(max_tokens=300))
        async for delta in generation:
            if delta.token_ids:
                break
        engine._runner.gate.clear()
        generation.abort()
        generation.abort()
        rest = [delta async for delta in generation]
        assert [(d.text, d.token_ids, d.finish) for d in rest] == [("", (), FinishReason.ABORTED)]
        steps = engine.stats().steps_total
        engine._runner.gate.set()
        await until(lambda: engine.stats().running == 0)
        assert engine.stats().steps_total - steps <= 2
        assert engine.stats().kv_blocks_held == 0
        assert engine.stats().aborted_total == 1


async def test_a_cancelled_reader_aborts():
    async with running() as engine:
        engine._runner.gate.clear()
        generation = engine.submit(PROMPT, SamplingParams(max_tokens=300))
        reader = asyncio.create_task(generation.collect())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        engine._runner.gate.set()
        await until(lambda: engine.stats().aborted_total == 1)
        assert engine.stats().kv_blocks_held == 0


async def test_random_cancels_leave_nothing_behind():
    picks = random.Random(4)
    async with running(n_blocks=60, max_num_seqs=6) as engine:

        async def caller(n: int) -> None:
            for turn in range(8):
                prompt = [1 + n % 5, 2, 3, 4, 5 + turn, 6][: picks.randint(1, 6)]
                reader = asyncio.create_task(
                    engine.submit(prompt, SamplingParams(max_tokens=20)).collect()
                )
                if picks.random() < 0.6:
                    await asyncio.sleep(picks.random() * 0.004)
                    reader.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    assert list((await reader).token_ids) == expected(prompt, 20)

        async with asyncio.TaskGroup() as group:
            for n in range(20):
                group.create_task(caller(n))
        await until(lambda: engine.stats().running + engine.stats().waiting == 0)
        stats = engine.stats()
        assert stats.finished_total == 160
        assert 0 < stats.aborted_total < 160
        assert (stats.kv_blocks_held, engine._n_open) == (0, 0)
        gc.collect()
        assert not [o for o in gc.get_objects() if type(o) in (Request, Generation)]


async def test_a_dropped_generation_aborts():
    async with running() as engine:
        engine._runner.gate.clear()
        engine.submit(PROMPT, SamplingParams(max_tokens=390))
        gc.collect()
        engine._runner.gate.set()
        await until(lambda: engine.stats().aborted_total == 1)


async def test_aclosing_aborts():
    async with running() as engine:
        engine._runner.pause_s = 0.02
        generation = engine.submit(PROMPT, SamplingParams(max_tokens=390))
        async with contextlib.aclosing(generation):
            async for delta in generation:
                if delta.token_ids:
                    break
        await until(lambda: engine.stats().aborted_total == 1)


async def test_prefill_makes_the_first_request_a_hit():
    async with running() as engine:
        prefix = list(range(1, 31))
        usage = await engine.prefill(prefix, tenant="shop", pin_key="agent")
        assert (usage.prompt_tokens, usage.output_tokens) == (30, 0)
        assert engine.stats().kv_blocks_pinned == 8
        generation = engine.submit([*prefix, 40, 41], SamplingParams(max_tokens=3), tenant="shop")
        await generation.collect()
        assert generation.usage.cached_tokens == 30
        other = engine.submit([*prefix, 40, 41], SamplingParams(max_tokens=3), tenant="else")
        await other.collect()
        assert other.usage.cached_tokens == 0
        engine.unpin("agent")
        engine.unpin("nothing")
        await engine.prefill([1], tenant="shop")
        assert engine.stats().kv_blocks_pinned == 0


async def test_refusals_say_the_limit():
    async with running(n_blocks=20, max_model_len=100, max_requests=2) as engine:
        params = SamplingParams(max_tokens=10)
        with pytest.raises(UsageError, match="empty"):
            engine.submit([], params)
        with pytest.raises(UsageError, match=r"at most 99"):
            engine.submit([1] * 100, params)
        with pytest.raises(UsageError, match=r"outside 0\.\.996"):
            engine.submit([N_VOCAB], params)
        with pytest.raises(UsageError, match="logit_bias"):
            engine.submit([1], SamplingParams(logit_bias=((N_VOCAB, 1.0),)))
        with pytest.raises(CapacityError, match="there are 20"):
            engine.submit([1] * 75, params)
        with pytest.raises(CapacityError, match="pins may hold 10"):
            await engine.prefill([1] * 50, pin_key="k")
        engine._runner.gate.clear()
        open_ones = [engine.submit(PROMPT, params) for _ in range(2)]
        with pytest.raises(CapacityError, match="2 requests are open"):
            engine.submit(PROMPT, params)
        engine._runner.gate.set()
        for generation in open_ones:
            await generation.collect()
        await engine.submit(PROMPT, params).collect()


async def test_a_reply_ends_at_the_models_length():
    async with running(max_model_len=10) as engine:
        done = await engine.submit(PROMPT, SamplingParams(max_tokens=50)).collect()
        assert done.finish is FinishReason.LENGTH
        assert len(done.token_ids) == 4


async def test_an_error_reaches_the_reader():
    async with running() as engine:
        engine._runner.fail_next = RuntimeError("device lost")
        generation = engine.submit(PROMPT, SamplingParams(max_tokens=5))
        with pytest.raises(InternalError, match="device lost"):
            await generation.collect()
        assert generation.finish is FinishReason.ERROR
        done = await engine.submit(PROMPT, SamplingParams(max_tokens=5)).collect()
        assert list(done.token_ids) == expected(PROMPT, 5)


async def test_close_ends_open_generations():
    engine = build()
    engine._runner.gate.clear()
    generation = engine.submit(PROMPT, SamplingParams(max_tokens=300))
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    await asyncio.sleep(0)
    engine._runner.gate.set()
    await closing
    assert (await generation.collect()).finish is FinishReason.ABORTED
    engine.close()
    assert not engine._thread.alive
    with pytest.raises(UsageError, match="closed"):
        engine.submit(PROMPT, SamplingParams())


async def test_a_fault_of_the_loop_itself_is_survived(monkeypatch):
    async with running() as engine:
        plan = engine._scheduler.plan

        def broken(now):
            monkeypatch.setattr(engine._scheduler, "plan", plan)
            raise ZeroDivisionError("planning")

        monkeypatch.setattr(engine._scheduler, "plan", broken)
        with pytest.raises(InternalError, match="planning"):
            await engine.submit(PROMPT, SamplingParams(max_tokens=5)).collect()
        done = await engine.submit(PROMPT, SamplingParams(max_tokens=5)).collect()
        assert list(done.token_ids) == expected(PROMPT, 5)


def test_two_event_loops_and_no_loop():
    engine = build()
    try:
        with pytest.raises(UsageError, match="running event loop"):
            engine.submit(PROMPT, SamplingParams())

        async def one(prompt):
            return await engine.submit(prompt, SamplingParams(max_tokens=9)).collect()

        results: dict[int, list[int]] = {}

        def client(n):
            results[n] = list(asyncio.run(one([n, n + 1])).token_ids)

        threads = [threading.Thread(target=client, args=(n,)) for n in (3, 4, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {n: expected([n, n + 1], 9) for n in (3, 4, 5)}
    finally:
        engine.close()


def test_a_closed_event_loop_ends_its_requests():
    engine = build()
    try:
        engine._runner.gate.clear()
        kept = []

        async def leave():
            kept.append(engine.submit(PROMPT, SamplingParams(max_tokens=300)))

        asyncio.run(leave())
        engine._runner.gate.set()
        asyncio.run(until(lambda: engine.stats().aborted_total == 1))
        assert engine.stats().kv_blocks_held == 0
    finally:
        engine.close()


async def test_an_idle_engine_takes_no_steps():
    async with running() as engine:
        await engine.submit(PROMPT, SamplingParams(max_tokens=3)).collect()
        steps = engine.stats().steps_total
        waits = []
        original = engine._loop.step
        engine._loop.step = lambda now: waits.append(now) or original(now)
        await asyncio.sleep(0.05)
        assert waits == []
        assert engine.stats().steps_total == steps
