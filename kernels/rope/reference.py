"""Rotary position embedding (arXiv 2104.09864) in plain PyTorch, interleaved layout.

The pair (2i, 2i+1) of a head is one complex number, so a rotation is one complex product. Weights
stored in the half-split layout have their q and k rows permuted once at load; a permutation common
to q and k leaves every attention score as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x: Tensor, turns: Tensor) -> None:
    """Rotates in place. x fp32 [n, heads, d], last dimension dense; turns complex64 [n, 1, d/2]."""
    n, heads, d = x.shape
    torch.view_as_complex(x.view(n, heads, d // 2, 2)).mul_(turns)


def rope_at(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> None:
    """Rotates q [n, heads, d] and k [n, kv_heads, d] in place, each token by its position.

    cos_sin fp32 [max, d]: cosine and sine of pair i at columns 2 i and 2 i + 1. positions int64
    [n].
    """
    rows = cos_sin[positions].unsqueeze(1)
    cos, sin = rows[..., 0::2], rows[..., 1::2]
    for x in (q, k):
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1)
        x.copy_(turned.flatten(-2))
