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

Quant = Literal["native", "int8", "fp32"]
"""native: as the file has them, on the native CPU kernels (models/native.py); int8: per output row,
on PyTorch's fbgemm; fp32: exact."""


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

    q, or q_norm where there is one (Qwen3 normalises each head), carries the factor
    1/sqrt(head_dim).
    """

    attn_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
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
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


def norm_heads(heads: Tensor, layer: RawLayer | Layer, n_q: int, n_k: int, eps: float) -> None:
    """Normalises query and key heads in place, if the layer does. heads fp32 [n, heads, d]."""
    if layer.q_norm is None or layer.k_norm is None:
        return
    d = heads.shape[-1]
    for part, weight in ((heads[:, :n_q], layer.q_norm), (heads[:, n_q : n_q + n_k], layer.k_norm)):
        part.copy_(resolve("rms_norm")(part.reshape(-1, d), weight, eps).view(part.shape))


def read_layer(source: WeightSource, number: int) -> RawLayer:
    """Reads layer `number`."""

    def get(name: str) -> Tensor:
        return source.get(f"{number}.{name}")

    scale = 1.0 / math.sqrt(source.config.head_dim)
    normed = source.has(f"{number}.q_norm")
    q_scale = 1.0 if normed else scale
    bias = None
    if source.has(f"{number}.q_bias"):
        bias = torch.cat((get("q_bias").mul_(q_scale), get("k_bias"), get("v_bias")))
    return RawLayer(
        attn_norm=get("attn_norm"),
        qkv=torch.cat((get("q").mul_(q_scale), get("k"), get("v"))),
        qkv_bias=bias,
        q_norm=get("q_norm").mul_(scale) if normed else None,
        k_norm=get("k_norm") if normed else None,
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
        q_norm=raw.q_norm,
        k_norm=raw.k_norm,
        o=make_linear(raw.o, quant),
        mlp_norm=raw.mlp_norm,
        gate_up=make_linear(raw.gate_up, quant),
        down=make_linear(raw.down, quant),
    )
