"""Storing keys and values in a paged cache, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.kv_write.spec import MOST, check


def kv_write(
    k: Tensor, v: Tensor, cache: Tensor, slots: Tensor, scales: Tensor | None = None
) -> None:
    """Stores k and v [n, kv_heads, d] in one layer's cache at slots int64 [n]. See spec.py."""
    check(k, v, cache, slots, scales)
    stored = slots >= 0
    block, offset = slots[stored] // cache.shape[3], slots[stored] % cache.shape[3]
    for side, rows in enumerate((k[stored], v[stored])):
        if scales is not None:
            rows, scale = quantise(rows)
            scales[side, block, :, offset] = scale
        cache[side, block, :, offset] = rows.to(cache.dtype)


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., d] -> codes, whole numbers of x's type or fp32, and scales [...] of the same."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = wide.abs().amax(-1) / MOST
    return (wide / torch.where(scale == 0, 1.0, scale).unsqueeze(-1)).round(), scale


def numbers(cache: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What a cache [..., d] holds, in dtype: codes times their scales, if it has any."""
    if scales is None:
        return cache.to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return (cache.to(wide) * scales.to(wide).unsqueeze(-1)).to(dtype)
