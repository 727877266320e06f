"""Storing keys and values in a paged cache, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from kernels.kv_write.spec import check


def kv_write(k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Stores k and v [n, kv_heads, d] in one layer's cache at slots int64 [n]. See spec.py."""
    check(k, v, cache, slots)
    stored = slots >= 0
    block, offset = slots[stored] // cache.shape[3], slots[stored] % cache.shape[3]
    cache[0, block, :, offset] = k[stored].to(cache.dtype)
    cache[1, block, :, offset] = v[stored].to(cache.dtype)
