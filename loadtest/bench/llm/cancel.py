"""Cancelling: steps and milliseconds from `abort` until the blocks are free, through each door."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from engine.client import Engine
from engine.sampling import SamplingParams
from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import ms, tail
from loadtest.bench.llm.own import ALONE_THREADS, policy_name
from loadtest.bench.llm.workload import Workload

_POLL_S = 0.0005


def cancel(bench: Bench) -> dict[str, Any]:
    """One of eight decoding calls is aborted, again and again; a new one takes its place."""
    times = 4 if bench.options.quick else 40
    with bench.own.open(ALONE_THREADS) as engine:
        took, steps = b.run(lambda: _abort_often(engine, bench.workload(6000), times))
    return {
        "threads": policy_name(ALONE_THREADS),
        "shape": "one of eight decoding calls aborted, 300 tokens in",
        "aborts": times,
        "free_ms": tail(took),
        "most_steps": max(steps),
    }


async def _abort_often(engine: Engine, work: Workload, times: int) -> tuple[list[float], list[int]]:
    """(milliseconds, steps) as seen from outside, where a step more may have passed unseen."""
    others = [asyncio.create_task(_decode(engine, work.piece(32), 400)) for _ in range(7)]
    took: list[float] = []
    steps: list[int] = []
    try:
        for _ in range(times):
            generation = engine.submit(
                work.piece(300), SamplingParams(max_tokens=500, ignore_eos=True)
            )
            async for _ in generation:
                break
            before = engine.stats()
            start = time.perf_counter()
            generation.abort()
            while (now := engine.stats()).aborted_total == before.aborted_total:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            took.append(1000 * (time.perf_counter() - start))
            steps.append(now.steps_total - before.steps_total)
            for i, other in enumerate(others):
                if other.done():
                    others[i] = asyncio.create_task(_decode(engine, work.piece(32), 400))
    finally:
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return took, steps


async def _decode(engine: Engine, prompt: tuple[int, ...], n: int) -> None:
    async for _ in engine.submit(prompt, SamplingParams(max_tokens=n, ignore_eos=True)):
        pass


def show(body: dict[str, Any]) -> None:
    took = body["free_ms"]
    print(
        f"abort to blocks free amid seven decoding calls, {body['threads']}: at most "
        f"{body['most_steps']} steps; p50 {ms(took, 'p50')} p95 {ms(took, 'p95')} p99 "
        f"{ms(took, 'p99')} max {ms(took, 'max')} ms "
        f"(n = {took['n']})"
    )
