"""What the engine tells about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.gc_watch import GcWatch
from engine.histogram import HistogramSnapshot
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
    guesses_proposed_total: int
    """Tokens that speculation guessed."""
    guesses_accepted_total: int
    """Of those, the ones that became tokens of a reply."""
    waiting_peak: int
    hit_rate: float
    """Prompt tokens found in the prefix cache, as a share of all."""
    cancellation_rate: float
    """Aborted requests, as a share of those that ended."""
    kv_waste_percent: float
    """Slots of running requests' blocks that held no token, of all their slots, over all steps."""
    step_over_floor_p50: float
    """A step's time over the best that warm-up found for as many tokens."""
    step_over_floor_p95: float
    token_ms: float
    """What a token costs in a step with as many rows as there may be, by the cost model."""
    prompt_token_ms: float
    """What a further prompt token costs in a step."""
    ttft_live_ms_p50: float
    ttft_live_ms_p99: float
    token_gap_live_ms_p50: float
    token_gap_live_ms_p99: float
    abort_steps_max: int
    """Most steps from an abort until the request's blocks were free."""
    pinned_evictions_total: int
    """Pinned blocks that eviction asked for: a bug, refused."""
    gc_pauses_total: int
    """Garbage collections since warm-up."""
    gc_pause_ms_max: float
    memory_headroom_mb: int
    """Memory that was free for others after warm-up; 0 before it."""
    compiles_after_warmup_total: int
    """Kernels compiled and graphs captured since warm-up, which should have made them all."""


def collect(
    loop: EngineLoop, gc: GcWatch, memory_headroom_mb: int, compiles: int = 0
) -> EngineStats:
    """A snapshot from any thread; figures may be one step apart from each other."""
    scheduler, counters, kv = loop.scheduler, loop.counters, loop.kv
    blocks = kv.pool.counts()
    step_ms, over_floor = sorted(counters.step_ms), sorted(counters.step_over_floor)
    totals, speculation = scheduler.counters, scheduler.speculation
    budget = scheduler.pace.budget
    most_rows = min(budget.most_tokens, scheduler.config.max_num_seqs)
    ttft = counters.ttft_s["live"].snapshot()
    gaps = counters.token_gap_s["live"].snapshot()
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
        guesses_proposed_total=speculation.proposed if speculation else 0,
        guesses_accepted_total=speculation.accepted if speculation else 0,
        waiting_peak=totals.peak_waiting,
        hit_rate=_share(totals.cached_tokens, totals.prompt_tokens),
        cancellation_rate=_share(counters.aborted, counters.finished),
        kv_waste_percent=100.0
        * _share(counters.kv_slots - counters.kv_slots_used, counters.kv_slots),
        step_over_floor_p50=_quantile(over_floor, 0.5),
        step_over_floor_p95=_quantile(over_floor, 0.95),
        token_ms=budget.cost.ms(most_rows) / most_rows,
        prompt_token_ms=budget.cost.per_token_ms,
        ttft_live_ms_p50=ttft.quantile(0.5) * 1000.0,
        ttft_live_ms_p99=ttft.quantile(0.99) * 1000.0,
        token_gap_live_ms_p50=gaps.quantile(0.5) * 1000.0,
        token_gap_live_ms_p99=gaps.quantile(0.99) * 1000.0,
        abort_steps_max=counters.abort_steps_max,
        pinned_evictions_total=kv.pins.n_refused,
        gc_pauses_total=gc.n,
        gc_pause_ms_max=gc.longest_s * 1000.0,
        memory_headroom_mb=memory_headroom_mb,
        compiles_after_warmup_total=compiles,
    )


def histograms(loop: EngineLoop) -> dict[str, dict[str, HistogramSnapshot]]:
    """Metric name -> class of request -> its distribution, in seconds."""
    counters = loop.counters
    return {
        "ttft_seconds": {name: h.snapshot() for name, h in counters.ttft_s.items()},
        "token_gap_seconds": {name: h.snapshot() for name, h in counters.token_gap_s.items()},
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else 0.0
