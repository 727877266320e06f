"""Shapes, layout and records of paged_attention.

The cache of one layer is fp32 [2, n_blocks, kv_heads, block_size, d]: keys, then values. A query
attends to the first `n_seen` positions of its request, or to the last `window` of them, found
through its block table. Queries are already scaled by 1/sqrt(d). Query head h reads key head
h // (heads // kv_heads).

A query's result is bit-identical alone, in a batch, and however a prompt is cut into chunks: sums
over positions run in tiles of `TILE`, and query rows come in groups of at least `MIN_ROWS`, because
a matrix product may add up in another order when it is very thin or very deep.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

ATOL = 2e-5
RTOL = 2e-4
TILE = 128
"""Positions summed by one product of probabilities and values."""
PAD = 64
"""Gathered positions are padded to a multiple of this; a divisor of TILE."""
MIN_ROWS = 8
"""Fewest rows of a product; thinner ones are padded with zero rows."""
CHUNK = 128
"""Most query tokens of one request handled together."""
SCALE_BYTES = 128
"""The native int8 cache (cpu_int8.h): of the scales of sixteen positions of a head."""


@dataclass(frozen=True, slots=True)
class Decode:
    """Rows with one query each, done together.

    tokens: int64 [b] row numbers in the step's token tensor, or None when they are 0..b-1.
    gather: int64 [2 * b * kv_heads * padded_blocks] into a layer's (block, kv head) pairs, keys
    then values. mask: fp32 [b, 1, padded], 0 or -inf. padded: positions per row, a multiple of PAD.
    """

    tokens: Tensor | None
    n: int
    gather: Tensor
    mask: Tensor
    padded: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Consecutive query tokens [first, first + n) of the step, all of one request.

    gather: int64 [2 * kv_heads * padded_blocks]. mask: fp32 [max(n, MIN_ROWS), 1, padded], causal,
    0 or -inf; rows past n are padding.
    """

    first: int
    n: int
    gather: Tensor
    mask: Tensor
    padded: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Every query of a step, and where its keys and values go.

    write: int64 [n_tokens * 2 * kv_heads] rows of the layer's cache seen as [rows, d], in the order
    (token, keys then values, kv head).
    """

    write: Tensor
    decode: Decode | None
    prefills: tuple[Prefill, ...]


def bytes_moved(n_seen: int, kv_heads: int, d: int) -> int:
    """Bytes of keys and values one query must read."""
    return 4 * 2 * n_seen * kv_heads * d
