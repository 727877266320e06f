"""Runs the shapes once before anybody waits, and measures what a step costs."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.blocks import BlockPool
from engine.budget import CostModel, fit
from engine.inputs import Row, SampleRow
from engine.loop import StepRunner
from engine.sampling import SamplingParams


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
    max_batch: int,
    max_step_tokens: int,
    timer: Callable[[], float] = time.perf_counter,
    repeats: int = 2,
) -> WarmupReport:
    """Time decode steps of 1, 4, 8.. rows and prompts of 16, 64, 256.. tokens, and fit the model.

    Uses free blocks of the pool and gives them back. Call it before the engine thread starts.
    """
    begun = timer()
    size = runner.block_size
    decode: list[tuple[int, float]] = []
    prefill: list[tuple[int, float]] = []
    room = pool.n_free * size
    for n_rows in _sizes((1, 2, 4, 8, 16, 32, 64), min(max_batch, pool.n_free)):
        blocks = pool.allocate(n_rows)
        rows = [_row(1, (block,)) for block in blocks]
        decode.append((n_rows, _best_ms(runner, rows, timer, repeats)))
        pool.release(blocks)
    longest = min(max_step_tokens, room, runner.max_model_len - 1)
    for n_tokens in _sizes((16, 64, 128, 256, 512), longest):
        blocks = pool.allocate(-(-n_tokens // size))
        rows = [_row(n_tokens, tuple(blocks))]
        prefill.append((n_tokens, _best_ms(runner, rows, timer, repeats)))
        pool.release(blocks)
    return WarmupReport(fit([*decode, *prefill]), tuple(decode), tuple(prefill), timer() - begun)


def freeze_garbage() -> None:
    """Collect once, then keep what lives now out of every later collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)


def _sizes(wanted: tuple[int, ...], most: int) -> list[int]:
    return [n for n in wanted if n <= most] or [max(1, most)]


def _row(n_tokens: int, blocks: tuple[int, ...]) -> Row:
    ids = tuple(1 + i % 7 for i in range(n_tokens))
    return Row(ids, 0, blocks, SampleRow(SamplingParams(), n_tokens, 0, ids))


def _best_ms(
    runner: StepRunner, rows: list[Row], timer: Callable[[], float], repeats: int
) -> float:
    runner.run(rows)  # the first time may allocate
    best = float("inf")
    for _ in range(repeats):
        begun = timer()
        runner.run(rows)
        best = min(best, (timer() - begun) * 1000.0)
    return best


def _interpolate(points: tuple[tuple[int, float], ...], n: int) -> float:
    """Linear between measured points, and along the last segment beyond them."""
    if len(points) == 1:
        return points[0][1]
    at = next((i for i, (size, _) in enumerate(points[1:-1], 1) if n <= size), len(points) - 1)
    (n0, ms0), (n1, ms1) = points[at - 1], points[at]
    return max(0.0, ms0 + (ms1 - ms0) * (n - n0) / (n1 - n0))
