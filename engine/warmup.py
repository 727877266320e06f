"""Runs the shapes once before anybody waits, and measures what a step costs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.blocks import BlockPool
from engine.budget import CostModel, fit
from engine.inputs import Row, SampleRow
from engine.launch import StepRunner
from engine.sampling import SamplingParams

_ROUNDS = 5
_DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64)
_PREFILL_TOKENS = (16, 64, 128, 256)
_GPU_DECODE_ROWS = (*_DECODE_ROWS, 96, 128)
_GPU_PREFILL_TOKENS = (*_PREFILL_TOKENS, 512, 1024, 2048)
"""Of a runner that overlaps: steps are short there, and a few hundred tokens cost like one."""
_FAR_TOKENS = 32
_FAR = 1024
"""How far into a context the cost of attention is measured, with _FAR_TOKENS tokens."""


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """`samples`: (tokens in the step, best measured milliseconds). `seconds`: the whole warm-up."""

    cost: CostModel
    decode_ms: tuple[tuple[int, float], ...]
    prefill_ms: tuple[tuple[int, float], ...]
    seconds: float

    def predict_decode_ms(self, n_rows: int) -> float:
        """A step in which `n_rows` requests decode one token each."""
        return _interpolate(self.decode_ms, n_rows)

    def predict_prefill_ms(self, n_tokens: int) -> float:
        """`n_tokens` prompt tokens of one request, alone."""
        return _interpolate(self.prefill_ms, n_tokens)


def measure(
    runner: StepRunner,
    pool: BlockPool,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    timer: Callable[[], float] = time.perf_counter,
    budget_s: float = 4.0,
) -> WarmupReport:
    """Time decode steps of 1, 2, 4.. rows and prompts of 16, 64, 128.. tokens, and fit the model.

    A chunk at the start and one far into a context tell what attention adds a position.

    Every shape runs once to warm it; then rounds over all shapes, the best time of each counting,
    until `_ROUNDS` are done or `budget_s` is spent (one round at least). Uses free blocks of the
    pool and gives them back. Call it before the engine thread starts.
    """
    begun = timer()
    size = runner.block_size
    longest = min(max_num_batched_tokens, pool.n_free * size, runner.max_model_len - 1)
    blocks = pool.allocate(pool.n_free)
    decode_rows = _GPU_DECODE_ROWS if runner.overlaps else _DECODE_ROWS
    prompts = _GPU_PREFILL_TOKENS if runner.overlaps else _PREFILL_TOKENS
    decode = {
        n: [_row(1, (block,)) for block in blocks[:n]]
        for n in _sizes(decode_rows, min(max_num_seqs, len(blocks)))
    }
    prefill = {n: [_row(n, tuple(blocks[: -(-n // size)]))] for n in _sizes(prompts, longest)}
    far_at = min(_FAR, longest_context(runner, len(blocks)) - _FAR_TOKENS)
    far_blocks = tuple(blocks[: -(-(far_at + _FAR_TOKENS) // size)])
    far = [[_row(_FAR_TOKENS, far_blocks, at)] for at in (0, far_at)] if far_at > 0 else []
    shapes = [*decode.values(), *prefill.values(), *far]
    for rows in shapes:
        runner.run(rows)
    best = [float("inf")] * len(shapes)
    for _ in range(_ROUNDS):
        for i, rows in enumerate(shapes):
            started = timer()
            runner.run(rows)
            best[i] = min(best[i], (timer() - started) * 1000.0)
        if timer() - begun > budget_s:
            break
    pool.release(blocks)
    decode_ms = tuple(zip(decode, best[: len(decode)], strict=True))
    prefill_ms = tuple(zip(prefill, best[len(decode) :], strict=False))
    cost = fit([*decode_ms, *prefill_ms])
    if far:
        near_ms, far_ms = best[-2:]
        extra_ms = max(0.0, far_ms - near_ms) / (_FAR_TOKENS * far_at)
        cost = replace(cost, per_position=extra_ms / cost.per_token_ms)
    return WarmupReport(cost, decode_ms, prefill_ms, timer() - begun)


def longest_context(runner: StepRunner, n_blocks: int) -> int:
    """Tokens that one request may hold in `n_blocks` blocks."""
    return min(n_blocks * runner.block_size, runner.max_model_len - 1)


def freeze_garbage() -> None:
    """Collect once, then keep what lives now out of every later collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


def free_memory_mb() -> int:
    """Memory of the machine that is free for others, in MiB."""
    import psutil

    return int(psutil.virtual_memory().available >> 20)


def _sizes(wanted: tuple[int, ...], most: int) -> list[int]:
    return [n for n in wanted if n <= most] or [max(1, most)]


def _row(n_tokens: int, blocks: tuple[int, ...], start: int = 0) -> Row:
    ids = tuple(1 + i % 7 for i in range(n_tokens))
    return Row(ids, start, blocks, SampleRow(SamplingParams(), start + n_tokens, 0, ids))


def _interpolate(points: tuple[tuple[int, float], ...], n: int) -> float:
    """Linear between measured points, and along the last segment beyond them."""
    if len(points) == 1:
        return points[0][1]
    at = next((i for i, (size, _) in enumerate(points[1:-1], 1) if n <= size), len(points) - 1)
    (n0, ms0), (n1, ms1) = points[at - 1], points[at]
    return max(0.0, ms0 + (ms1 - ms0) * (n - n0) / (n1 - n0))
