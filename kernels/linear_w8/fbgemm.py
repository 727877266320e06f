"""linear_w8 on a CPU through PyTorch's fbgemm: int8 products with exact 32-bit sums.

fbgemm's dynamic product takes one scale for the whole activation tensor. Dividing each row by its
own largest magnitude and adding a sentinel row that holds +1 and -1 makes that scale a constant.
"""

from __future__ import annotations

import threading
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor


class _Scratch(threading.local):
    """Per thread and per width: rows [>= n + 1, n_in] whose first is the sentinel."""

    def __init__(self) -> None:
        self._by_width: dict[int, Tensor] = {}

    def rows(self, n: int, n_in: int) -> Tensor:
        have = self._by_width.get(n_in)
        if have is None or have.shape[0] <= n:
            with torch.inference_mode(False):  # usable inside and outside of inference mode
                have = torch.zeros(max(n + 1, 9), n_in)
                have[0, 0] = 1.0
                have[0, 1] = -1.0
            self._by_width[n_in] = have
        return have[: n + 1]


_scratch = _Scratch()
_packing = threading.Lock()
"""Packing switches a process-wide setting of PyTorch for a moment."""


def _pack(q: Tensor, scale: Tensor) -> Any:
    """fbgemm's own form of q int8 [n_out, n_in] with scale fp32 [n_out]."""
    with _packing, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tensor type is deprecated, the product is not
        engine = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            zeros = torch.zeros(q.shape[0], dtype=torch.long)
            weight = torch._make_per_channel_quantized_tensor(q, scale.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(weight, None)
        finally:
            torch.backends.quantized.engine = engine


@cache
def _saturates() -> bool:
    """Whether 8-bit activations overflow here: without VNNI, pairs of products add up in 16 bits.

    Then 7-bit activations are used, which can't.
    """
    packed = _pack(torch.full((8, 64), 127, dtype=torch.int8), torch.ones(8))
    x = torch.tensor([[-1.0], [1.0]]).expand(2, 64).contiguous()
    exact = torch.full((8,), 64 * 127.0)
    y = torch.ops.quantized.linear_dynamic(x, packed, False)
    return not torch.allclose(y[1], exact, rtol=0.02)


class linear_w8:
    """A weight packed for fbgemm; calling it multiplies. Owns its copy of the weight."""

    def __init__(self, q: Tensor, scale: Tensor) -> None:
        """q int8 [n_out, n_in]; scale fp32 [n_out]."""
        self.n_out, self.n_in = q.shape
        self._packed = _pack(q, scale)
        self._reduce_range = _saturates()

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x fp32 [n, n_in], bias fp32 [n_out] -> fp32 [n, n_out]."""
        y, top = self._product(x)
        return y.mul_(top) if bias is None else torch.addcmul(bias, y, top)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += self(x), in place."""
        residual.addcmul_(*self._product(x))

    def _product(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The product of the normalised rows [n, n_out]; each row's largest magnitude [n, 1]."""
        rows = _scratch.rows(x.shape[0], self.n_in)
        top = x.abs().amax(-1, True).clamp_min_(1e-30)
        torch.div(x, top, out=rows[1:])
        y = torch.ops.quantized.linear_dynamic(rows, self._packed, self._reduce_range)
        return y[1:], top
