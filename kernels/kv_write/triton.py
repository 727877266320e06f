"""Storing keys and values in a paged cache, in Triton: a few tokens of one head per program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall, power_of_two
from kernels.kv_write.spec import check


def kv_write(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Stores k and v [n, kv_heads, d] in one layer's cache at slots int64 [n]. See spec.py."""
    check(k, v, cache, slots)
    call(k, v, cache, slots).run()


def call(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> KernelCall:
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
    side_stride, block_stride, head_stride, slot_stride,
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
    tl.store(place, key.to(cache.dtype.element_ty), stored)
    value = tl.load(v + token[:, None] * v_row + head * v_head + column[None, :], stored, other=0.0)
    tl.store(place + side_stride, value.to(cache.dtype.element_ty), stored)
