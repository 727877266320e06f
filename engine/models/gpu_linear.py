"""A weight matrix on a GPU: dense in half precision, or codes in groups of 32 inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.weights import WeightSource

GpuQuant = Literal["dense"]
"""dense: as the activations are."""


class Projection:
    """y = x @ W.T + bias."""

    __slots__ = ("_bias", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight [n_out, n_in]; bias [n_out]."""
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, n_in] -> [n, n_out]."""
        return F.linear(x, self._weight, self._bias)

    def into(self, out: Tensor, x: Tensor) -> None:
        """out [n, n_out] = self(x), without other memory; only without a bias."""
        torch.mm(x, self._weight.T, out=out)

    @property
    def n_bytes(self) -> int:
        """Bytes that a product reads of the weight."""
        return self._weight.nbytes


def make_projection(
    source: WeightSource,
    names: Sequence[str],
    bias: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
    quant: GpuQuant,
) -> Projection:
    """The named weights on top of each other."""
    parts = [source.get(name).to(device, dtype) for name in names]
    return Projection(parts[0] if len(parts) == 1 else torch.cat(parts), bias)


def random_projection(
    n_in: int,
    n_out: int,
    bias: Tensor | None,
    generator: torch.Generator,
    dtype: torch.dtype,
    quant: GpuQuant,
) -> Projection:
    """Seeded weights that keep the size of what goes through them."""
    weight = torch.empty(n_out, n_in, dtype=dtype, device=generator.device)
    return Projection(weight.normal_(0.0, 1.0 / math.sqrt(n_in), generator=generator), bias)
