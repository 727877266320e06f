"""A step's sampling rows as the tensors that kernels.sample takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from engine.counts import TokenCounts
from engine.inputs import SampleRow
from kernels.sample.spec import Biases, Penalties, Settings


class Fake:
    """A grammar that always rules out the same tokens."""

    def __init__(self, banned: NDArray[np.bool_]) -> None:
        self._banned = banned

    def banned(self) -> NDArray[np.bool_]:
        return self._banned


def settings(rows: Sequence[SampleRow], vocab: int) -> Settings:
    """A grammar comes in as biases of -inf: what a mask leaves."""
    params = [row.params for row in rows]
    b = len(rows)
    seen = torch.full((b, vocab), -1, dtype=torch.int32)
    said = torch.zeros(b, vocab)
    tokens = torch.full((b, vocab), -1, dtype=torch.int32)
    values = torch.full((b, vocab), float("nan"))
    for i, row in enumerate(rows):
        counts = TokenCounts()
        counts.catch_up(row.history, row.n_prompt)
        n = len(counts.seen)
        seen[i, 1 : n + 1] = torch.from_numpy(counts.seen)
        said[i, 1 : n + 1] = torch.from_numpy(counts.said)
        biases = dict(row.params.logit_bias)
        if row.constraint is not None:
            allowed = np.zeros(vocab, np.bool_)
            banned = row.constraint.banned()
            assert banned is not None
            allowed[: len(banned)] = ~banned
            biases |= {int(token): -np.inf for token in np.flatnonzero(~allowed)}
        tokens[i, : len(biases)] = torch.tensor(list(biases), dtype=torch.int32)
        values[i, : len(biases)] = torch.tensor(list(biases.values()))

    def each(name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.tensor([getattr(p, name) for p in params], dtype=dtype)

    penalties = Penalties(
        repetition=each("repetition_penalty"),
        presence=each("presence_penalty", torch.float64),
        frequency=each("frequency_penalty"),
        seen=seen,
        said=said,
    )
    seeds = np.array([row.seed % 2**64 for row in rows], np.uint64).view(np.int64)
    return Settings(
        temperature=each("temperature"),
        top_k=each("top_k", torch.int32),
        top_p=each("top_p"),
        min_p=each("min_p"),
        seeds=torch.from_numpy(seeds),
        positions=torch.tensor([row.position for row in rows]),
        penalties=penalties if any(p.penalised for p in params) else None,
        biases=Biases(tokens, values) if bool((tokens >= 0).any()) else None,
    )
