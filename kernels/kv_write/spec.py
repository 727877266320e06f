"""Shapes, layout and bytes of kv_write: new keys and values into one layer's paged cache.

k, v [n, kv_heads, d], any strides with a dense last dimension (parts of one fused projection), any
float dtype; cache [2, n_blocks, kv_heads, block_size, d], written in its dtype; slots int64 [n]:
block * block_size + offset of token i, negative: not stored. No slot twice.

With scales, fp32 [2, n_blocks, kv_heads, block_size], any strides, the cache is int8: a key or
value is rounded to codes from -127 to 127, its largest number being 127, and its scale is stored
beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 127.0
"""The largest code."""


def check(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None) -> None:
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
    check_scales(cache, scales)


def check_scales(cache: Tensor, scales: Tensor | None) -> None:
    """Raises ValueError for scales that don't belong to a cache."""
    if scales is None:
        return
    if cache.dtype != torch.int8 or scales.dtype != torch.float32:
        raise ValueError(f"scales are fp32 of an int8 cache, not {scales.dtype} of {cache.dtype}")
    if scales.shape != cache.shape[:-1]:
        raise ValueError(f"scales {tuple(scales.shape)} don't fit the cache {tuple(cache.shape)}")


def bytes_moved(n: int, kv_heads: int, d: int, itemsize: int, *, int8: bool = False) -> int:
    """Bytes of n tokens: keys and values read and written once, and the slots."""
    written = d + 4 if int8 else d * itemsize
    return 2 * n * kv_heads * (d * itemsize + written) + 8 * n
