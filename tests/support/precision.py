"""Errors judged by what plain PyTorch loses in the same precision, both against float64."""

from __future__ import annotations

import torch
from torch import Tensor

ERROR_FACTOR = 2.0


def assert_as_good(got: Tensor, plain: Tensor, exact: Tensor) -> None:
    """No error of `got` above twice the largest of `plain`; fp32 may also lose its last bits."""
    assert got.dtype == plain.dtype
    assert exact.dtype == torch.float64
    assert torch.isfinite(got).all()
    if not got.numel():
        return
    own = (plain.double() - exact).abs().max()
    least = 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    error = (got.double() - exact).abs().max()
    assert error <= ERROR_FACTOR * own + least, f"{error:.3g} is off, plain PyTorch {own:.3g}"
