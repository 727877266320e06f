"""Evens the channels of keys before they are rounded to 8 bits.

A few channels of a model's keys can be a hundred times the others: Qwen 2.5's biases put them
there. A key that is rounded with one scale then keeps little of the rest. Dividing a channel of the
keys by s and multiplying it in the queries that read them changes no score (as SmoothQuant does
with products, arXiv 2211.10438). Both channels of a rotary pair take the same s, so rotation does
not mind; every s is a power of two, so nothing is rounded.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.weights import WeightSource
from kernels.linear_group.spec import Codes

_USUAL = 2.0
"""Magnitude of a rotary pair that needs no help, as biases of Qwen 2.5 have it."""
_SHARE = 0.5
"""How much of what lies above moves into the queries, 0 to 1."""


class BalancedKeys:
    """A `WeightSource` whose keys are even, as far as biases or head norms tell what they will be;
    a model without either stays as it is."""

    def __init__(self, source: WeightSource) -> None:
        self.config: ModelConfig = source.config
        self._source = source

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def get(self, name: str) -> Tensor:
        weight, by = self._source.get(name), self._by(name)
        if by is None:
            return weight
        return weight * by.view(-1, *(1 for _ in weight.shape[1:]))

    def codes(self, name: str, bits: int = 8) -> Codes:
        codes, by = self._source.codes(name, bits), self._by(name)
        if by is None:
            return codes
        shift = None if codes.shift is None else (codes.shift * by[:, None]).half()
        return replace(codes, scale=(codes.scale * by[:, None]).half(), shift=shift)

    def rope_factors(self) -> Tensor | None:
        return self._source.rope_factors()

    def close(self) -> None:
        self._source.close()

    def _by(self, name: str) -> Tensor | None:
        """What the rows of a weight are multiplied with, or None."""
        layer, _, part = name.rpartition(".")
        c, d = self.config, self.config.head_dim
        if self._source.has(f"{layer}.k_norm"):
            if part not in ("q_norm", "k_norm"):
                return None
            factors = _factors(self._source.get(f"{layer}.k_norm").view(1, d)).view(d)
            return factors if part == "q_norm" else 1.0 / factors
        if part not in ("q", "k", "q_bias", "k_bias") or not self._source.has(f"{layer}.k_bias"):
            return None
        factors = _factors(self._source.get(f"{layer}.k_bias").view(c.kv_heads, d))
        if part.startswith("k"):
            return 1.0 / factors.flatten()
        return factors.repeat_interleave(c.heads // c.kv_heads, 0).flatten()


def _factors(size: Tensor) -> Tensor:
    """[heads, d] of typical numbers -> powers of two [heads, d], one for each rotary pair."""
    pairs = size.view(len(size), -1, 2).norm(dim=-1)
    exponent = (_SHARE * torch.log2((pairs / _USUAL).clamp(min=1.0))).round()
    return torch.exp2(exponent).repeat_interleave(2, -1)
