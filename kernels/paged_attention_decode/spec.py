"""Shapes, layout and bytes of paged_attention_decode: one query per request against its cache.

q [b, heads, d] fp16, bf16 or fp32, last dimension dense; cache, one layer, of q's dtype
[2, n_blocks, kv_heads, block_size, d]: keys, then values, last dimension dense; tables int32
[b, max_blocks]: a request's blocks in order; seen int32 [b]: positions of the request, this token's
included. Query head h reads key head h // (heads // kv_heads). window > 0: only the last `window`
positions are seen. A row with seen = 0 gives zeros, and its table is not read. What lies in the
cache behind `seen` or before the window may hold anything, NaN too.

With scales, fp32 [2, n_blocks, kv_heads, block_size], any strides, the cache is int8 and its
numbers are codes times scales: kernels/kv_write.
"""

from __future__ import annotations

from torch import Tensor

from kernels.kv_write.spec import check_scales

HEAD_DIMS = (64, 80, 96, 128)
BLOCK_SIZES = (16, 32)
"""What tests compile for; any other head size up to 256, and block sizes that are powers of two,
give right results too."""
ERROR_FACTOR = 2.0
"""Largest error against fp64, in units of the reference's in the same precision."""


def check(
    q: Tensor, cache: Tensor, tables: Tensor, seen: Tensor, scales: Tensor | None = None
) -> None:
    """Raises ValueError for shapes, dtypes or strides that the kernels do not take."""
    check_scales(cache, scales)
    d, kv_heads, block_size = cache.shape[4], cache.shape[2], cache.shape[3]
    if q.shape[2] != d or q.shape[1] % kv_heads or (scales is None and q.dtype != cache.dtype):
        raise ValueError(
            f"queries {q.dtype} {tuple(q.shape)} don't fit the cache {cache.dtype} "
            f"{tuple(cache.shape)}"
        )
    if block_size & (block_size - 1):
        raise ValueError(f"block size {block_size} is no power of two")
    if q.stride(2) != 1 or cache.stride(4) != 1 or tables.stride(1) != 1:
        raise ValueError("the last dimension of queries, cache and tables must be dense")
    if tables.shape[0] != seen.shape[0]:
        raise ValueError(f"{tables.shape[0]} block tables for {seen.shape[0]} rows")


def bytes_moved(
    seen: int, heads: int, kv_heads: int, d: int, itemsize: int, *, int8: bool = False
) -> int:
    """Bytes one request must move: its keys and values, the query and the result once each."""
    position = d + 4 if int8 else d * itemsize
    return 2 * seen * kv_heads * position + 2 * itemsize * d * heads


def operations(seen: int, heads: int, d: int) -> int:
    """Multiply-adds, counted as two, of one request."""
    return 4 * seen * heads * d
