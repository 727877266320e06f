"""Shapes, dtypes and tolerances of linear_w8.

y = x @ (q * scale[:, None]).T with q int8 [n_out, n_in] and scale fp32 [n_out], x fp32 [n, n_in].
Each row of x is divided by its largest magnitude and rounded to 8 bits with one constant scale, the
integer sums are exact, and the row's magnitude is multiplied back: a row's result is bit-identical
alone and in any batch, whatever its neighbours hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

REL_ERROR = 0.025
"""Largest relative error of an output row (2-norm) against the fp32 product of Gaussian data."""
SHAPES = ((576, 960), (576, 3072), (1536, 576), (896, 1152), (4864, 896), (64, 96))
"""(n_in, n_out)."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight fp32 [n_out, n_in] -> (int8 [n_out, n_in], fp32 scale [n_out]), symmetric per row."""
    scale = torch.linalg.vector_norm(weight, float("inf"), 1).div_(127.0)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (weight / scale[:, None]).round_().to(torch.int8), scale


def bytes_moved(n: int, n_in: int, n_out: int) -> int:
    """Bytes read and written once each."""
    return n_in * n_out + 4 * (n_out + n * n_in + n * n_out)
