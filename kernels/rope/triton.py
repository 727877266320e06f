"""Rotary position embedding in Triton: queries and keys of a step in one launch, in place."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall, power_of_two


def rope_at(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> None:
    """Rotates in place. q [n, heads, d], k [n, kv_heads, d], last dimension dense, d even.

    cos_sin fp32 [max, d]: cosine and sine of pair i at columns 2 i and 2 i + 1. positions int64
    [n], each within 0..max-1: nothing checks that.
    """
    call(q, k, cos_sin, positions).run()


def call(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> KernelCall:
    """The launch: a program takes BLOCK_H heads of one token."""
    (n, heads, d), kv_heads = q.shape, k.shape[1]
    default = {"BLOCK_H": 8, "num_warps": 2, "num_stages": 1}
    tiles = tuning.launch("rope_at", "all", q.device, default)
    q_tiles = -(-heads // tiles["BLOCK_H"])
    arguments = {
        "q": q,
        "k": k,
        "cos_sin": cos_sin,
        "positions": positions,
        "q_row": q.stride(0),
        "q_head": q.stride(1),
        "k_row": k.stride(0),
        "k_head": k.stride(1),
        "table_row": cos_sin.stride(0),
        "heads": heads,
        "kv_heads": kv_heads,
        "q_tiles": q_tiles,
        "HALF": d // 2,
        "PAIRS": power_of_two(d // 2),
        "BLOCK_H": tiles["BLOCK_H"],
    }
    options = {name: tiles[name] for name in ("num_warps", "num_stages")}
    grid = (n, q_tiles + -(-kv_heads // tiles["BLOCK_H"]))
    return KernelCall(_turn, grid, arguments, options)


@triton.jit
def _turn(
    q, k, cos_sin, positions, q_row, q_head, k_row, k_head, table_row, heads, kv_heads, q_tiles,
    HALF: tl.constexpr, PAIRS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    pair = tl.arange(0, PAIRS)
    at = tl.load(positions + token) * table_row + 2 * pair
    cos = tl.load(cos_sin + at, pair < HALF, other=0.0)
    sin = tl.load(cos_sin + at + 1, pair < HALF, other=0.0)
    if tile < q_tiles:
        _turn_heads(q + token * q_row, q_head, tile, heads, cos, sin, HALF, PAIRS, BLOCK_H)
    else:
        _turn_heads(
            k + token * k_row, k_head, tile - q_tiles, kv_heads, cos, sin, HALF, PAIRS, BLOCK_H
        )


@triton.jit
def _turn_heads(
    x, stride, tile, heads, cos, sin,
    HALF: tl.constexpr, PAIRS: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    head = tile * BLOCK_H + tl.arange(0, BLOCK_H)
    pair = tl.arange(0, PAIRS)
    side = tl.arange(0, 2)
    at = x + head[:, None, None] * stride + 2 * pair[None, :, None] + side[None, None, :]
    inside = (
        (head < heads)[:, None, None] & (pair < HALF)[None, :, None] & (side < 2)[None, None, :]
    )
    even, odd = tl.split(tl.load(at, inside, other=0.0).to(tl.float32))
    cos, sin = cos[None, :], sin[None, :]
    turned = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    tl.store(at, turned.to(x.dtype.element_ty), inside)
