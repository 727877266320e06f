"""Copying rows between blocks of a paged cache, in Triton: all layers in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.call import KernelCall, power_of_two
from kernels.kv_copy.spec import check


def kv_copy(
    cache: Tensor, src: Tensor, dst: Tensor, n_rows: Tensor, scales: Tensor | None = None
) -> None:
    """Copies the first n_rows[i] positions of block src[i] to dst[i], all layers. See spec.py."""
    check(cache, src, dst, n_rows, scales)
    call(cache, src, dst, n_rows, scales).run()


def call(
    cache: Tensor, src: Tensor, dst: Tensor, n_rows: Tensor, scales: Tensor | None = None
) -> KernelCall:
    """The launch that copies all pairs: a program per pair, layer, side and head."""
    layers, sides, _, kv_heads, block_size, d = cache.shape
    return KernelCall(
        _copy,
        (src.shape[0], layers * sides, kv_heads),
        {
            "cache": cache,
            "src": src,
            "dst": dst,
            "n_rows": n_rows,
            "layer_stride": cache.stride(0),
            "side_stride": cache.stride(1),
            "block_stride": cache.stride(2),
            "head_stride": cache.stride(3),
            "slot_stride": cache.stride(4),
            "scales": scales,
            "s_layer": 0 if scales is None else scales.stride(0),
            "s_side": 0 if scales is None else scales.stride(1),
            "s_block": 0 if scales is None else scales.stride(2),
            "s_head": 0 if scales is None else scales.stride(3),
            "s_slot": 0 if scales is None else scales.stride(4),
            "D": d,
            "D_PAD": power_of_two(d),
            "BLOCK_SIZE": block_size,
        },
        {"num_warps": 4, "num_stages": 1},
    )


@triton.jit
def _copy(
    cache, src, dst, n_rows, layer_stride, side_stride, block_stride, head_stride, slot_stride,
    scales, s_layer, s_side, s_block, s_head, s_slot,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    layer, side = tl.program_id(1).to(tl.int64) // 2, tl.program_id(1).to(tl.int64) % 2
    base = cache + layer * layer_stride + side * side_stride
    head = tl.program_id(2).to(tl.int64)
    base += head * head_stride
    slot, column = tl.arange(0, BLOCK_SIZE), tl.arange(0, D_PAD)
    old, new, wanted = tl.load(src + pair), tl.load(dst + pair), slot < tl.load(n_rows + pair)
    copied = wanted[:, None] & (column < D)[None, :]
    at = slot[:, None] * slot_stride + column[None, :]
    rows = tl.load(base + old * block_stride + at, copied, other=0.0)
    tl.store(base + new * block_stride + at, rows, copied)
    if scales is not None:
        own = scales + layer * s_layer + side * s_side + head * s_head + slot * s_slot
        tl.store(own + new * s_block, tl.load(own + old * s_block, wanted, other=0.0), wanted)
