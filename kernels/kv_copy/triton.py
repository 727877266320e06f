"""Copying rows between blocks of a paged cache, in Triton: all layers in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.call import KernelCall, power_of_two
from kernels.kv_copy.spec import check


def kv_copy(cache: Tensor, src: Tensor, dst: Tensor, n_rows: Tensor) -> None:
    """Copies the first n_rows[i] positions of block src[i] to dst[i], all layers. See spec.py."""
    check(cache, src, dst, n_rows)
    call(cache, src, dst, n_rows).run()


def call(cache: Tensor, src: Tensor, dst: Tensor, n_rows: Tensor) -> KernelCall:
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
            "D": d,
            "D_PAD": power_of_two(d),
            "BLOCK_SIZE": block_size,
        },
        {"num_warps": 4, "num_stages": 1},
    )


@triton.jit
def _copy(
    cache, src, dst, n_rows, layer_stride, side_stride, block_stride, head_stride, slot_stride,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    layer, side = tl.program_id(1).to(tl.int64) // 2, tl.program_id(1).to(tl.int64) % 2
    base = cache + layer * layer_stride + side * side_stride
    base += tl.program_id(2).to(tl.int64) * head_stride
    slot, column = tl.arange(0, BLOCK_SIZE), tl.arange(0, D_PAD)
    copied = (slot < tl.load(n_rows + pair))[:, None] & (column < D)[None, :]
    at = slot[:, None] * slot_stride + column[None, :]
    rows = tl.load(base + tl.load(src + pair) * block_stride + at, copied, other=0.0)
    tl.store(base + tl.load(dst + pair) * block_stride + at, rows, copied)
