"""RMS normalisation in Triton, alone or with the residual addition before it: one row a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall, power_of_two


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [n, d] with dense rows, weight [d] -> [n, d] of x's dtype. Computed in fp32."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    call(x, None, weight, out, eps).run()
    return out


def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x in place, then the norm of that sum as stored: [n, d] of x's dtype.

    x, residual [n, d] with dense rows, of any two float dtypes; weight [d].
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    call(x, residual, weight, out, eps).run()
    return out


def call(x: Tensor, residual: Tensor | None, weight: Tensor, out: Tensor, eps: float) -> KernelCall:
    """The launch: one row a program. out [n, d], contiguous."""
    n, d = x.shape
    shape, warps = ("narrow", 2) if d <= 1024 else ("wide", 8)
    arguments = {
        "x": x,
        "residual": residual,
        "weight": weight,
        "out": out,
        "x_row": x.stride(0),
        "residual_row": 0 if residual is None else residual.stride(0),
        "d": d,
        "eps": eps,
        "BLOCK": power_of_two(d),
    }
    options = tuning.launch("rms_norm", shape, x.device, {"num_warps": warps, "num_stages": 1})
    return KernelCall(_norm, (n,), arguments, options)


@triton.jit
def _norm(
    x, residual, weight, out, x_row, residual_row, d, eps, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < d
    value = tl.load(x + row * x_row + at, inside, other=0.0).to(tl.float32)
    if residual is not None:
        place = residual + row * residual_row + at
        value += tl.load(place, inside, other=0.0).to(tl.float32)
        stored = value.to(residual.dtype.element_ty)
        tl.store(place, stored, inside)
        value = stored.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / d + eps)
    by = tl.load(weight + at, inside, other=0.0).to(tl.float32)
    tl.store(out + row * d + at, (value * scale * by).to(out.dtype.element_ty), inside)
