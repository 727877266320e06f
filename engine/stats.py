"""What the engine tells about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.loop import EngineLoop


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges of this moment, `_total` counters since start, times of the last 512 steps."""

    running: int
    waiting: int
    kv_blocks_total: int
    kv_blocks_free: int
    kv_blocks_cached: int
    kv_blocks_held: int
    kv_blocks_fenced: int
    kv_blocks_pinned: int
    step_ms_p50: float
    step_ms_p95: float
    step_ms_max: float
    steps_total: int
    tokens_total: int
    prompt_tokens_total: int
    cached_tokens_total: int
    finished_total: int
    aborted_total: int
    failed_total: int
    preemptions_total: int
    evicted_blocks_total: int
    pins_lapsed_total: int
    missed_deadlines_total: int
    wakeups_total: int
    integrity_failures_total: int
    grammar_finished_total: int
    grammar_valid_total: int
    """Of those, the replies whose grammar was complete at their end: all that were not cut."""


def collect(loop: EngineLoop) -> EngineStats:
    """A snapshot from any thread; figures may be one step apart from each other."""
    scheduler, counters, kv = loop.scheduler, loop.counters, loop.kv
    blocks = kv.pool.counts()
    step_ms = sorted(counters.step_ms)
    return EngineStats(
        running=scheduler.n_running,
        waiting=scheduler.n_waiting,
        kv_blocks_total=blocks.total,
        kv_blocks_free=blocks.free,
        kv_blocks_cached=blocks.cached,
        kv_blocks_held=blocks.held,
        kv_blocks_fenced=blocks.fenced,
        kv_blocks_pinned=kv.pins.n_blocks,
        step_ms_p50=_quantile(step_ms, 0.5),
        step_ms_p95=_quantile(step_ms, 0.95),
        step_ms_max=step_ms[-1] if step_ms else 0.0,
        steps_total=counters.steps,
        tokens_total=counters.tokens,
        prompt_tokens_total=scheduler.counters.prompt_tokens,
        cached_tokens_total=scheduler.counters.cached_tokens,
        finished_total=counters.finished,
        aborted_total=counters.aborted,
        failed_total=counters.failed,
        preemptions_total=scheduler.counters.preemptions,
        evicted_blocks_total=kv.prefix.n_evicted,
        pins_lapsed_total=kv.pins.n_lapsed,
        missed_deadlines_total=scheduler.counters.missed_deadlines,
        wakeups_total=counters.wakeups,
        integrity_failures_total=counters.integrity_failures,
        grammar_finished_total=counters.grammar_finished,
        grammar_valid_total=counters.grammar_valid,
    )


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0
