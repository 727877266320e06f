"""A small real model: what a step is made of, what batching brings, what the cache saves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.client import Engine
from engine.sampling import SamplingParams
from kernels.decoder_step.native import Decoder
from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench, Options
from loadtest.bench.llm.own import LIVE_THREADS
from loadtest.bench.llm.target import InProcess, play
from loadtest.bench.llm.workload import SYSTEM, Ask

from .figures import Better, Figure

MODEL = "smollm2-135m"
CALLS = 8
N_OUT = 24
NOISE, SMALL = 0.3, 0.5
"""Slack of ratios of processor time, which a busy neighbour still moves through the caches; of
a small one."""


def figures() -> list[Figure]:
    bench = Bench.open(Options(MODEL, peers=False, quick=True, kv_bytes=128 << 20))
    with bench.own.open(LIVE_THREADS) as engine:
        return [*_cache(bench, engine), *_batching(bench, engine)]


@dataclass(slots=True)
class NativeTime:
    """CPU seconds of the thread that calls: in the native step, and in all since the first one."""

    calls: int = 0
    native_s: float = 0.0
    began_s: float | None = None
    ended_s: float = 0.0

    @property
    def cpu_s(self) -> float:
        return self.ended_s - (self.began_s or 0.0)

    @property
    def python_share(self) -> float:
        return 1.0 - self.native_s / self.cpu_s


@contextmanager
def native_steps() -> Iterator[NativeTime]:
    seen, run = NativeTime(), Decoder.run

    def watched(self: Decoder, *args: Any, **named: Any) -> Any:
        before = time.thread_time()
        if seen.began_s is None:
            seen.began_s = before
        try:
            return run(self, *args, **named)
        finally:
            seen.ended_s = time.thread_time()
            seen.native_s += seen.ended_s - before
            seen.calls += 1

    Decoder.run = watched  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Decoder.run = run  # type: ignore[method-assign]


def _cache(bench: Bench, engine: Engine) -> list[Figure]:
    """Callers of one agent, one after the other: prompt tokens that were not computed again."""
    work = bench.workload(1)
    system = work.piece(SYSTEM)
    for _ in range(4):
        b.run(partial(play, InProcess("ours", engine), [Ask(system + work.turn(), 2)]))
    stats = engine.stats()
    saved = stats.cached_tokens_total
    return [Figure("model.prefill_tokens_saved", float(saved), Better.HIGHER)]


def _batching(bench: Bench, engine: Engine) -> list[Figure]:
    """Eight calls together and each alone: the same tokens, and how much less of the processor."""
    asks = [Ask(ask.prompt, N_OUT) for ask in bench.workload(2).fixed(CALLS)]
    together = b.run(partial(_tokens, engine, asks))
    alone = [b.run(partial(_tokens, engine, [ask]))[0] for ask in asks]
    differ = sum(a != t for a, t in zip(alone, together, strict=True))
    before = engine.stats().steps_total
    with native_steps() as one:
        for ask in asks:
            b.run(partial(_tokens, engine, [ask]))
    with native_steps() as eight:
        for _ in range(3):
            b.run(partial(_tokens, engine, asks))
    steps = engine.stats().steps_total - before
    per_token = one.cpu_s / (CALLS * N_OUT), eight.cpu_s / (3 * CALLS * N_OUT)
    return [
        Figure("model.replies_changed_by_batching", float(differ), Better.LOWER),
        Figure("model.cpu_per_token_1_over_8", per_token[0] / per_token[1], Better.HIGHER, NOISE),
        Figure("model.native_calls_per_step", (one.calls + eight.calls) / steps, Better.LOWER),
        Figure("model.python_share_of_a_step", eight.python_share, Better.LOWER, SMALL),
    ]


async def _tokens(engine: Engine, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
    params = [SamplingParams(max_tokens=ask.n_out, ignore_eos=True) for ask in asks]
    replies = [engine.submit(a.prompt, p) for a, p in zip(asks, params, strict=True)]
    return [tuple([t async for delta in reply for t in delta.token_ids]) for reply in replies]
