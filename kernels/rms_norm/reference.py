"""RMS normalisation (arXiv 1910.07467) in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x fp32 [n, d], weight fp32 [d] -> fp32 [n, d]. Rows don't depend on each other."""
    norm = torch.linalg.vector_norm(x, 2, -1, True)
    scale = norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    out: Tensor = (x * scale).mul_(weight)
    return out
