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
