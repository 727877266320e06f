"""What one step computes, as arrays, and the interface of whatever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.inputs import Row
from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of all rows in a line: ids and positions int64 [n_tokens].

    ends: where each row's tokens end. wanted int64 [n_logits]: tokens whose logits are asked for.
    """

    rows: Sequence[Row]
    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    ends: tuple[int, ...]
    wanted: NDArray[np.int64]

    def spans(self) -> list[tuple[int, int, Sequence[int]]]:
        """(start, n tokens, block table) per row."""
        return [(row.start, len(row.token_ids), row.blocks) for row in self.rows]


def make_batch(rows: Sequence[Row], wanted: Sequence[int]) -> Batch:
    """wanted: numbers of the rows whose last token's logits are asked for, and those of the tokens
    before it that are followed by a guess."""
    ends = tuple(accumulate(len(row.token_ids) for row in rows))
    last = chain.from_iterable(range(ends[i] - 1 - rows[i].n_proposed, ends[i]) for i in wanted)
    return Batch(
        rows,
        np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int64, ends[-1]),
        np.concatenate([np.arange(row.start, row.start + len(row.token_ids)) for row in rows]),
        ends,
        np.fromiter(last, np.int64),
    )


class Forward(Protocol):
    """A model over one cache; used by one thread at a time."""

    def __call__(self, batch: Batch) -> Tensor:
        """Stores keys and values of every token; the wanted logits, fp32 [n_logits, vocab]."""

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Copies the first n_rows positions of block src into block dst, in every layer."""


class Model(Protocol):
    """Weights ready to run."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def max_len(self) -> int: ...

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one block of the cache over all layers."""

    def over(self, cache: Tensor, n_blocks: int, block_size: int) -> Forward:
        """cache uint8 [n_blocks * block_bytes(block_size)], contiguous and zero, not reallocated;
        what lies where in it is the model's own."""
