"""A weight matrix on a GPU: dense in half precision, or codes in groups of 32 inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.errors import ModelError
from engine.models.weights import WeightSource
from kernels.linear_group import cuda
from kernels.linear_group.gpu import GpuCodes, pack, shape_class
from kernels.linear_group.spec import GROUP, Codes
from kernels.resolve import module_for, resolve

GpuQuant = Literal["dense", "w8", "w4"]
"""dense: of the activations' type. w8, w4: codes as the file has them; where it has none, rounded
to so many bits in groups of 32 inputs (the head to 8 always)."""


class Projection(Protocol):
    """y = x @ W.T + bias, W [n_out, n_in]."""

    @property
    def n_bytes(self) -> int:
        """Bytes that a product with few rows reads of the weight."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, n_in] -> [n, n_out] of x's dtype."""
        ...

    def into(self, out: Tensor, x: Tensor) -> None:
        """out [n, n_out] = self(x)."""
        ...


class DenseProjection:
    """On the vendor's matrix product."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight [n_out, n_in]; bias [n_out]."""
        self._weight = weight
        self._bias = bias

    @property
    def n_bytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)

    def into(self, out: Tensor, x: Tensor) -> None:
        if self._bias is None:
            torch.mm(x, self._weight.T, out=out)
        else:
            torch.addmm(self._bias, x, self._weight.T, out=out)


class CodesProjection:
    """On our own product; weights of several formats lie on top of each other as several.

    Where the device's tuning file names CUDA C++ for a class of few rows, the weight is kept a
    second time, in its order.
    """

    def __init__(self, weights: Sequence[GpuCodes], bias: Tensor | None = None) -> None:
        """bias: of all outputs, [n_out]."""
        biases: Sequence[Tensor | None] = [None] * len(weights)
        if bias is not None:
            biases = torch.split(bias, [weight.n_out for weight in weights])
        self._parts = [_Part(*part) for part in zip(weights, biases, strict=True)]

    @property
    def n_bytes(self) -> int:
        return sum(part.weight.n_bytes for part in self._parts)

    def __call__(self, x: Tensor) -> Tensor:
        n_out = sum(part.weight.n_out for part in self._parts)
        out = torch.empty(x.shape[0], n_out, dtype=x.dtype, device=x.device)
        self.into(out, x)
        return out

    def into(self, out: Tensor, x: Tensor) -> None:
        first = 0
        for part in self._parts:
            last = first + part.weight.n_out
            part.into(out[:, first:last], x)
            first = last


class _Part:
    """A weight of one format, and what multiplies with it for each class of rows."""

    def __init__(self, weight: GpuCodes, bias: Tensor | None) -> None:
        self.weight = weight
        self._bias = bias
        device = weight.data.device
        self._multiply: Any = resolve("linear_group", device)
        self._in_cuda = frozenset(n for n in range(1, cuda.MAX_ROWS + 1) if _in_cuda(weight, n))
        if self._in_cuda:
            self._packed = cuda.pack(weight.codes())
            self._wide_bias = None if bias is None else bias.float()
            self._work = cuda.workspace(weight.n_in, device)

    def into(self, out: Tensor, x: Tensor) -> None:
        if x.shape[0] in self._in_cuda:
            cuda.linear_group(x, self._packed, self._wide_bias, out=out, work=self._work)
        else:
            self._multiply(x, self.weight, self._bias, out)


def _in_cuda(weight: GpuCodes, n: int) -> bool:
    """Whether n rows are multiplied by the CUDA C++ kernels."""
    shape, shifted = shape_class(weight.bits, n), weight.shift is not None
    found = module_for("linear_group", weight.data.device, shape, bits=weight.bits, shifted=shifted)
    return found is cuda


def make_projection(
    source: WeightSource,
    names: Sequence[str],
    bias: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
    quant: GpuQuant,
) -> Projection:
    """The named weights on top of each other."""
    if quant == "dense":
        parts = [source.get(name).to(device, dtype) for name in names]
        return DenseProjection(parts[0] if len(parts) == 1 else torch.cat(parts), bias)
    bits = 4 if quant == "w4" and names[0] not in ("head", "embed") else 8
    codes = [source.codes(name, bits) for name in names]
    same = groupby(codes, lambda part: (part.bits, part.shift is None))
    packed = [_pack(_stack(list(group)), device, names[0]) for _, group in same]
    return CodesProjection(packed, bias)


def random_projection(
    n_in: int,
    n_out: int,
    bias: Tensor | None,
    generator: torch.Generator,
    dtype: torch.dtype,
    quant: GpuQuant,
) -> Projection:
    """Seeded weights that keep the size of what goes through them."""
    device, size = generator.device, 1.0 / math.sqrt(n_in)
    if quant == "dense":
        weight = torch.empty(n_out, n_in, dtype=dtype, device=device)
        return DenseProjection(weight.normal_(0.0, size, generator=generator), bias)
    bits = 4 if quant == "w4" else 8
    made = torch.randint(
        2**bits, (n_out, n_in), dtype=torch.uint8, device=device, generator=generator
    )
    scale = torch.full((n_out, n_in // GROUP), size * math.sqrt(12) / 2**bits, device=device)
    return CodesProjection([_pack(Codes(bits, made, scale.half(), None), device, "")], bias)


def _pack(codes: Codes, device: torch.device, name: str) -> GpuCodes:
    try:
        return pack(codes, device)
    except ValueError as reason:
        raise ModelError(f"weight {name} can't be kept as codes: {reason}; take bf16") from None


def _stack(parts: Sequence[Codes]) -> Codes:
    """Parts of one format on top of each other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    shifts = [part.shift for part in parts if part.shift is not None]
    return Codes(
        first.bits,
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scale for part in parts]),
        torch.cat(shifts) if shifts else None,
    )
