"""RMS normalisation (arXiv 1910.07467) in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [n, d], weight [d] -> [n, d] of x's dtype, in fp32. Rows don't depend on each other."""
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, 2, -1, True)
    scale = norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()
    out: Tensor = (wide * scale).mul_(weight).to(x.dtype)
    return out


def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [n, d] += x in place, then the norm of that sum as stored, of x's dtype."""
    residual.add_(x)
    return rms_norm(residual, weight, eps).to(x.dtype)
