"""Storing keys and values in a paged cache, in Triton: a few tokens of one head per program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall, power_of_two
from kernels.kv_write.spec import MOST, check
from kernels.paged_attention.tile import scale_arguments

_MOST = tl.constexpr(MOST)
_MAGIC = tl.constexpr(12582912.0)
"""1.5 * 2^23: a small number plus it is rounded to a whole one, ties to even."""


def kv_write(
    k: Tensor, v: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None
) -> None:
    """Stores k and v [n, kv_heads, d] in one layer's cache at slots int64 [n]. See spec.py."""
    check(k, v, cache, slots, scales)
    call(k, v, cache, slots, scales).run()


def call(
    k: Tensor, v: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None
) -> KernelCall:
    """The launch that stores all tokens."""
    n, kv_heads, d = k.shape
    default = {"TOKENS": 8, "num_warps": 4, "num_stages": 1}
    tiles = dict(tuning.launch("kv_write", f"d{d}", cache.device, default))
    options = {name: tiles.pop(name) for name in ("num_warps", "num_stages")}
    return KernelCall(
        _write,
        (-(-n // tiles["TOKENS"]), kv_heads),
        {
            "k": k,
            "v": v,
            "cache": cache,
            "slots": slots,
            "n": n,
            "k_row": k.stride(0),
            "k_head": k.stride(1),
            "v_row": v.stride(0),
            "v_head": v.stride(1),
            "side_stride": cache.stride(0),
            "block_stride": cache.stride(1),
            "head_stride": cache.stride(2),
            "slot_stride": cache.stride(3),
            **scale_arguments(scales),
            "D": d,
            "D_PAD": power_of_two(d),
            "BLOCK_SIZE": cache.shape[3],
            **tiles,
        },
        options,
    )


@triton.jit(do_not_specialize=["n"])
def _write(
    k, v, cache, slots, n, k_row, k_head, v_row, v_head,
    side_stride, block_stride, head_stride, slot_stride, scales, s_side, s_block, s_head, s_slot,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    column = tl.arange(0, D_PAD)
    slot = tl.load(slots + token, token < n, other=-1)
    stored = (slot >= 0)[:, None] & (column < D)[None, :]
    row = slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * slot_stride + head * head_stride
    place = cache + row[:, None] + column[None, :]
    key = tl.load(k + token[:, None] * k_row + head * k_head + column[None, :], stored, other=0.0)
    value = tl.load(v + token[:, None] * v_row + head * v_head + column[None, :], stored, other=0.0)
    if scales is not None:
        where = scales + slot // BLOCK_SIZE * s_block + slot % BLOCK_SIZE * s_slot + head * s_head
        key, scale = _rounded(key)
        tl.store(where, scale, slot >= 0)
        value, scale = _rounded(value)
        tl.store(where + s_side, scale, slot >= 0)
    tl.store(place, key.to(cache.dtype.element_ty), stored)
    tl.store(place + side_stride, value.to(cache.dtype.element_ty), stored)


@triton.jit
def _rounded(x):  # fmt: skip
    """Codes of rows, as fp32, and their scales. Divisions as PyTorch makes them, to the bit."""
    wide = x.to(tl.float32)
    scale = tl.div_rn(tl.max(tl.abs(wide), 1), tl.full([x.shape[0]], _MOST, tl.float32))
    by = tl.where(scale == 0.0, 1.0, scale)[:, None] + tl.zeros_like(wide)
    return (tl.div_rn(wide, by) + _MAGIC) - _MAGIC, scale
