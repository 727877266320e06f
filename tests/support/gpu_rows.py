"""Rows for a runner, and a way to drive it as the engine's loop does."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.gpu_runner import GpuRunner
from engine.inputs import PENDING, Row, SampleRow
from engine.sampling import SamplingParams
from tests.support import tiny_model

GREEDY = SamplingParams()
WARM = SamplingParams(temperature=1.0, top_p=0.9)


def ids(n: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(1, tiny_model.VOCAB), k=n))


def table(n: int, first: int) -> tuple[int, ...]:
    """Blocks of 16 for n tokens, in no helpful order."""
    blocks = list(range(first, first + -(-n // 16)))
    random.Random(n).shuffle(blocks)
    return tuple(blocks)


def sample(position: int, params: SamplingParams = GREEDY, seed: int = 0) -> SampleRow:
    return SampleRow(params, position, seed)


def prompt_row(
    prompt: Sequence[int], blocks: tuple[int, ...], slot: int, params: SamplingParams = GREEDY
) -> Row:
    return Row(tuple(prompt), 0, blocks, sample(len(prompt), params, slot), slot=slot)


def decode_row(
    token: int, at: int, blocks: tuple[int, ...], slot: int, params: SamplingParams = GREEDY
) -> Row:
    return Row((token,), at, blocks, sample(at + 1, params, slot), slot=slot)


def generate(
    runner: GpuRunner,
    prompts: Sequence[Sequence[int]],
    n: int,
    *,
    ahead: bool,
    params: SamplingParams = GREEDY,
) -> list[list[int]]:
    """n tokens after each prompt, all together, every prompt in a step of its own.

    ahead: each decode step is launched before the one before it is read.
    """
    blocks, first = [], 0
    for prompt in prompts:
        blocks.append(table(len(prompt) + n, first))
        first += len(blocks[-1])
    outs = []
    for slot, prompt in enumerate(prompts):
        (result,) = runner.run([prompt_row(prompt, blocks[slot], slot, params)])
        assert result is not None
        outs.append([result.token])
    under_way = None
    for step in range(n - 1):
        rows = []
        for slot, prompt in enumerate(prompts):
            last = PENDING if ahead and step else outs[slot][-1]
            rows.append(decode_row(last, len(prompt) + step, blocks[slot], slot, params))
        launched = runner.launch(rows)
        for before in [under_way] if ahead else [launched]:
            for out, result in zip(outs, before.read() if before else (), strict=False):
                assert result is not None
                out.append(result.token)
        under_way = launched
    if ahead and under_way is not None:
        for out, result in zip(outs, under_way.read(), strict=True):
            assert result is not None
            out.append(result.token)
    return outs
