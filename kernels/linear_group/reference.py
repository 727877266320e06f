"""linear_group in plain PyTorch: codes multiplied in float64, exact, group by group."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.linear_group.gpu import GpuCodes
from kernels.linear_group.spec import GROUP, Codes


def linear_group(
    x: Tensor, w: Codes | GpuCodes, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x fp32 [n, n_in], bias fp32 [n_out] -> fp32 [n, n_out], in `out` if given.

    With GpuCodes as on a GPU: x of any float dtype, not rounded, and a result of that dtype.
    """
    if isinstance(w, GpuCodes):
        y = F.linear(x, w.dense(x.dtype), None if bias is None else bias.to(x.dtype))
    else:
        y = _rounded(x, w, bias)
    return y if out is None else out.copy_(y)


def _rounded(x: Tensor, w: Codes, bias: Tensor | None) -> Tensor:
    """As the CPU's kernels: activations in 8 bits per row and group."""
    n = x.shape[0]
    groups = x.view(n, -1, GROUP)
    top = groups.abs().amax(-1)
    inverse = torch.where(top > 0, 127.0 / top, torch.zeros_like(top)).unsqueeze(-1)
    codes = (groups * inverse).round_()
    scale = top / 127.0
    zero = 0 if w.shift is not None else 2 ** (w.bits - 1)
    weight = w.codes.view(-1, groups.shape[1], GROUP).double() - zero
    y = torch.zeros(n, weight.shape[0])
    for g in range(groups.shape[1]):
        part = (codes[:, g].double() @ weight[:, g].T).float()
        y += part * scale[:, g, None] * w.scale[:, g].float()
        if w.shift is not None:
            y += w.shift[:, g].float() * (scale[:, g] * codes[:, g].sum(-1))[:, None]
    return y if bias is None else y + bias
