"""Shapes, layout and bytes of kv_write: new keys and values into one layer's paged cache.

k, v [n, kv_heads, d], any strides with a dense last dimension (parts of one fused projection), any
float dtype; cache [2, n_blocks, kv_heads, block_size, d], written in its dtype, never quantised;
slots int64 [n]: block * block_size + offset of token i, negative: not stored. No slot twice.
"""

from __future__ import annotations

from torch import Tensor


def check(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Raises ValueError for shapes or strides that the kernels do not take."""
    if k.shape != v.shape or k.shape[1:] != (cache.shape[2], cache.shape[4]):
        raise ValueError(
            f"keys {tuple(k.shape)} and values {tuple(v.shape)} don't fit the cache "
            f"{tuple(cache.shape)}"
        )
    if slots.shape != k.shape[:1]:
        raise ValueError(f"{tuple(slots.shape)} slots for {k.shape[0]} tokens")
    if k.stride(2) != 1 or v.stride(2) != 1 or cache.stride(4) != 1:
        raise ValueError("the last dimension of keys, values and cache must be dense")


def bytes_moved(n: int, kv_heads: int, d: int, itemsize: int) -> int:
    """Bytes of n tokens: keys and values read and written once, and the slots."""
    return 2 * 2 * n * kv_heads * d * itemsize + 8 * n
