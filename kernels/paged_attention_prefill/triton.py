"""Attention of a ragged batch over a paged cache in Triton: prompts, chunks, decode rows at once.

One program takes M (query, head) pairs of a request that read the same key head: all query heads of
its group beside each other, so that keys and values are read once for the group.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall, power_of_two
from kernels.paged_attention.tile import fold, scale_arguments, shape_class
from kernels.paged_attention_decode.spec import check

FEW = 16
"""Up to this many (query, head) pairs a row and key head, tiles are the smallest a tensor core has.
A model therefore needs two kernels compiled: for max_q = 1 and for a long row."""


def paged_attention_prefill(
    q: Tensor,
    cache: Tensor,
    tables: Tensor,
    starts: Tensor,
    seen: Tensor,
    *,
    scale: float,
    window: int = 0,
    max_q: int,
    out: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """-> [n, heads, d] of q's dtype, in `out` if given. See spec.py.

    Queries of a row beyond max_q are not computed: it must cover the longest row.
    """
    check(q, cache, tables, seen, scales)
    if out is None:
        out = torch.empty_like(q)
    call(
        q, cache, tables, starts, seen, out,
        scale=scale, window=window, max_q=max_q, scales=scales,
    ).run()  # fmt: skip
    return out


def call(
    q: Tensor,
    cache: Tensor,
    tables: Tensor,
    starts: Tensor,
    seen: Tensor,
    out: Tensor,
    *,
    scale: float,
    window: int = 0,
    max_q: int,
    scales: Tensor | None = None,
) -> KernelCall:
    """The launch that computes all rows."""
    kv_heads, block_size, d = cache.shape[2:]
    group = q.shape[1] // kv_heads
    tiles = dict(_tiles(q, cache, max_q * group))
    options = {name: tiles.pop(name) for name in ("num_warps", "num_stages")}
    return KernelCall(
        _attend,
        (-(-max_q * group // tiles["M"]), kv_heads, seen.shape[0]),
        {
            "q": q,
            "cache": cache,
            "tables": tables,
            "starts": starts,
            "seen": seen,
            "out": out,
            "scale": scale * math.log2(math.e),
            "q_row": q.stride(0),
            "q_head": q.stride(1),
            "out_row": out.stride(0),
            "out_head": out.stride(1),
            "side_stride": cache.stride(0),
            "block_stride": cache.stride(1),
            "head_stride": cache.stride(2),
            "slot_stride": cache.stride(3),
            **scale_arguments(scales),
            "table_row": tables.stride(0),
            "GROUP": group,
            "D": d,
            "D_PAD": power_of_two(d),
            "BLOCK_SIZE": block_size,
            "WINDOW": window,
            **tiles,
        },
        options,
    )


def _tiles(q: Tensor, cache: Tensor, pairs: int) -> tuning.Launch:
    """M: (query, head) pairs of a program. TILE: positions at a time."""
    d, wide, few = cache.shape[4], q.element_size() > 2, pairs <= FEW
    int8, padded = cache.element_size() == 1, d != power_of_two(d)
    # As large as registers allow: with more positions, fewer warps or other stages one of the
    # architectures that tests compile for spills.
    tile = (32 if wide or (int8 and few) else 64) if d <= 64 else (16 if wide else 32)
    default = {"M": 16 if few or wide else 64, "TILE": tile}
    default["num_warps"] = 8 if wide or ((few or int8) and d > 64) else 4
    default["num_stages"] = 3 if padded and not (few or wide or int8) else 2
    size = "few" if few else "many"
    shape = f"{shape_class(q, cache)} {size}"
    return tuning.launch("paged_attention_prefill", shape, cache.device, default)


@triton.jit
def _attend(
    q, cache, tables, starts, seen, out, scale, q_row, q_head, out_row, out_head,
    side_stride, block_stride, head_stride, slot_stride,
    scales, s_side, s_block, s_head, s_slot, table_row,
    GROUP: tl.constexpr, M: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    begin = tl.load(starts + row)
    n = tl.load(starts + row + 1) - begin
    n_seen = tl.load(seen + row)
    # Later queries see more: the longest programs start first.
    first_pair = (tl.num_programs(0) - 1 - tl.program_id(0)) * M
    if first_pair >= n * GROUP:
        return
    pair = first_pair + tl.arange(0, M)
    index = pair // GROUP
    column = tl.arange(0, D_PAD)
    kept = (index < n)[:, None] & (column < D)[None, :]
    token = (begin + index).to(tl.int64)[:, None]
    mine = (head * GROUP + pair % GROUP)[:, None]
    query = tl.load(q + token * q_row + mine * q_head + column[None, :], kept, other=0.0)
    before = n_seen - n  # position of the row's first query
    until = tl.where(index < n, before + index + 1, 0)
    high = before + tl.minimum((first_pair + M - 1) // GROUP, n - 1) + 1
    low = tl.maximum(before + first_pair // GROUP + 1 - WINDOW, 0) if WINDOW else n * 0
    mixed = tl.zeros([M, D_PAD], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    keys = cache + head.to(tl.int64) * head_stride
    own = scales
    if scales is not None:
        own = scales + head.to(tl.int64) * s_head
    for at in range(low // TILE * TILE, high, TILE):
        mixed, top, total = fold(
            mixed, top, total, query, keys, side_stride, tables + row * table_row, at, low, high,
            until, block_stride, slot_stride, own, s_side, s_block, s_slot, scale,
            D, D_PAD, BLOCK_SIZE, TILE, WINDOW,
        )  # fmt: skip
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    place = out + token * out_row + mine * out_head + column[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), kept)
