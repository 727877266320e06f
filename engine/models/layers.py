"""The weights of one transformer layer, packed for the kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.weights import WeightSource
from kernels.linear_w8.spec import quantise
from kernels.resolve import resolve

Quant = Literal["int8", "fp32"]


class Linear(Protocol):
    """y = x @ W.T with W [n_out, n_in]."""

    n_in: int
    n_out: int

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x fp32 [n, n_in], bias fp32 [n_out] -> fp32 [n, n_out]."""

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += self(x), in place."""


class DenseLinear:
    """A weight kept in fp32."""

    def __init__(self, weight: Tensor) -> None:
        self.n_out, self.n_in = weight.shape
        self._weight = weight

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, self._weight, bias)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        residual.add_(F.linear(x, self._weight))


def make_linear(weight: Tensor, quant: Quant) -> Linear:
    """Packs weight fp32 [n_out, n_in]."""
    if quant == "fp32":
        return DenseLinear(weight)
    packed: Linear = resolve("linear_w8")(*quantise(weight))
    return packed


@dataclass(frozen=True, slots=True)
class RawLayer:
    """One layer's weights in fp32. q, k and v are one product, gate and up another.

    q carries the factor 1/sqrt(head_dim).
    """

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """The same, packed for the kernels."""

    attn_norm: Tensor
    qkv: Linear
    qkv_bias: Tensor | None
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


def read_layer(source: WeightSource, number: int) -> RawLayer:
    """Reads layer `number`."""

    def get(name: str) -> Tensor:
        return source.get(f"{number}.{name}")

    scale = 1.0 / math.sqrt(source.config.head_dim)
    bias = None
    if source.has(f"{number}.q_bias"):
        bias = torch.cat((get("q_bias").mul_(scale), get("k_bias"), get("v_bias")))
    return RawLayer(
        attn_norm=get("attn_norm"),
        qkv=torch.cat((get("q").mul_(scale), get("k"), get("v"))),
        qkv_bias=bias,
        o=get("o"),
        mlp_norm=get("mlp_norm"),
        gate_up=torch.cat((get("gate"), get("up"))),
        down=get("down"),
    )


def pack_layer(raw: RawLayer, quant: Quant) -> Layer:
    """Packs a layer; fp32 keeps the weights, int8 copies them."""
    return Layer(
        attn_norm=raw.attn_norm,
        qkv=make_linear(raw.qkv, quant),
        qkv_bias=raw.qkv_bias,
        o=make_linear(raw.o, quant),
        mlp_norm=raw.mlp_norm,
        gate_up=make_linear(raw.gate_up, quant),
        down=make_linear(raw.down, quant),
    )
