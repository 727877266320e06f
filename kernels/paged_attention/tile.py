"""One tile of positions folded into a running softmax (arXiv 2205.14135), keys found by a table.

Device function of `paged_attention_decode` and `paged_attention_prefill`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def scale_arguments(scales: Tensor | None) -> dict[str, object]:
    """What the kernels are told of an int8 cache's scales [2, n_blocks, kv_heads, block_size]."""
    names = ("s_side", "s_block", "s_head", "s_slot")
    strides = (0, 0, 0, 0) if scales is None else scales.stride()
    return {"scales": scales, **dict(zip(names, strides, strict=True))}


def shape_class(q: Tensor, cache: Tensor) -> str:
    """In `kernels.tuning`: "d64x16" for a cache of fp16 or bf16, "d64x8" in 8 bits, "d64x8 wide" if
    queries are fp32 then: products are the queries', and take the registers of theirs."""
    name = f"d{cache.shape[4]}x{8 * cache.element_size()}"
    return f"{name} wide" if q.element_size() == 4 * cache.element_size() else name


@triton.jit
def fold(
    mixed, top, total, query, keys, to_values, table, first, low, high, until,
    block_stride, slot_stride, scales, s_values, s_block, s_slot, scale,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """Positions [first, first + TILE), of which only [low, high) are read, into M queries.

    mixed fp32 [M, D_PAD], top fp32 [M] (the largest score so far, to base 2), total fp32 [M];
    query [M, D_PAD] in the cache's type, zero beyond D; keys: pointer to this key head in block 0,
    values to_values further; table: pointer to the request's block table; until int32 [M]: query i
    sees the positions below until[i], of these the last WINDOW unless that is 0; scale: softmax
    scale times log2(e). scales: None, or of an int8 cache: pointer to those of this key head's keys
    in block 0, values' s_values further.
    What is not read may hold anything, NaN too. Returns the new mixed, top, total.
    """
    at = first + tl.arange(0, TILE)
    column = tl.arange(0, D_PAD)
    inside = at < high
    if WINDOW:
        inside &= at >= low
    if TILE % BLOCK_SIZE == 0:
        inner = tl.arange(0, TILE)
        number, slot = first // BLOCK_SIZE + inner // BLOCK_SIZE, inner % BLOCK_SIZE
    else:
        number, slot = at // BLOCK_SIZE, at % BLOCK_SIZE
    block = tl.load(table + number, inside, other=0).to(tl.int64)
    row = block * block_stride + slot * slot_stride
    place = keys + row[:, None] + column[None, :]
    present = inside[:, None]
    if D < D_PAD:
        present &= (column < D)[None, :]
    if scales is None:
        key = tl.load(place, present, other=0.0)
    else:
        key = tl.load(place, present, other=0).to(tl.float32).to(query.dtype)  # exact: below 128
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    if scales is not None:
        where = scales + block * s_block + slot * s_slot
        scores *= tl.load(where, inside, other=0.0)[None, :]
    visible = at[None, :] < until[:, None]
    if WINDOW:
        visible &= at[None, :] >= until[:, None] - WINDOW
    scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # a query that has seen nothing yet
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    total = total * shrink + tl.sum(weights, 1)
    if scales is None:
        value = tl.load(place + to_values, present, other=0.0)
        old = mixed * shrink[:, None]
        mixed = tl.dot(weights.to(value.dtype), value, old, input_precision="ieee")
    else:
        # Weights take the scales, as parts of the largest: fp16 has no room for small ones.
        own = tl.load(where + s_values, inside, other=0.0)
        most = tl.max(own, 0)
        shares = weights * (own / tl.where(most == 0.0, 1.0, most))[None, :]
        value = tl.load(place + to_values, present, other=0).to(tl.float32).to(query.dtype)
        part = tl.dot(shares.to(value.dtype), value, input_precision="ieee")
        mixed = mixed * shrink[:, None] + part * most
    return mixed, higher, total
