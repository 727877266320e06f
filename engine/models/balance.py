"""Moves outlying channels from activations into weights before both are rounded to 8 bits.

A few channels of a transformer's activations are tens of times larger than the rest, and a row
rounded to 8 bits keeps little of the others. Dividing a channel by s where it is made and
multiplying the weights that read it by s changes no result but evens the ranges (SmoothQuant,
arXiv 2211.10438). The ranges come from a probe that runs through the layers in fp32 as they are
loaded. Every s is a power of two, so the products in fp32 lose nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.layers import RawLayer, norm_heads
from kernels.resolve import resolve

N_PROBE = 96
_SHARE = 0.35
"""How much of a channel's outlying moves into the weights, 0 to 1 (chosen on SmolLM2)."""
_MOST = 6.0
"""Largest factor, as a power of two."""


class Balancer:
    """Carries the probe's hidden state from layer to layer."""

    def __init__(self, config: ModelConfig, embed: Tensor, turns: Tensor) -> None:
        """embed fp32 [vocab, hidden]; turns complex64 [>= N_PROBE, 1, head_dim / 2]."""
        n = min(N_PROBE, turns.shape[0])
        ids = probe_ids(config.vocab_size, n)
        self._config = config
        self._x = embed.index_select(0, ids).clone()
        self._turns = turns[:n]

    def balance(self, layer: RawLayer) -> None:
        """Changes the layer's weights in place, and takes the probe through it."""
        c, x = self._config, self._x
        norm = resolve("rms_norm")
        n = x.shape[0]
        q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim

        by = _factors(norm(x, layer.attn_norm, c.norm_eps), layer.qkv)
        layer.attn_norm.div_(by)
        layer.qkv.mul_(by)
        qkv = F.linear(norm(x, layer.attn_norm, c.norm_eps), layer.qkv, layer.qkv_bias)
        heads = qkv.view(n, -1, c.head_dim)
        norm_heads(heads, layer, c.heads, c.kv_heads, c.norm_eps)
        mixed = self._attend(heads)

        share = c.heads // c.kv_heads
        by = _factors(_per_kv(mixed, c), _per_kv(layer.o, c))
        layer.qkv[q + kv :].div_(by[:, None])
        if layer.qkv_bias is not None:
            layer.qkv_bias[q + kv :].div_(by)
        wide = by.view(c.kv_heads, 1, c.head_dim).expand(-1, share, -1).reshape(q)
        layer.o.mul_(wide)
        x.add_(F.linear(mixed / wide, layer.o))

        by = _factors(norm(x, layer.mlp_norm, c.norm_eps), layer.gate_up)
        layer.mlp_norm.div_(by)
        layer.gate_up.mul_(by)
        gated = resolve("silu_mul")(F.linear(norm(x, layer.mlp_norm, c.norm_eps), layer.gate_up))

        by = _factors(gated, layer.down)
        layer.gate_up[c.intermediate :].div_(by[:, None])
        layer.down.mul_(by)
        x.add_(F.linear(gated / by, layer.down))

    def balance_head(self, norm_weight: Tensor, head: Tensor) -> None:
        """The same for the last norm and the head, in place."""
        by = _factors(resolve("rms_norm")(self._x, norm_weight, self._config.norm_eps), head)
        norm_weight.div_(by)
        head.mul_(by)

    def _attend(self, heads: Tensor) -> Tensor:
        """heads fp32 [n, heads + 2 kv_heads, d] -> fp32 [n, heads * d]."""
        c = self._config
        resolve("rope")(heads[:, : c.heads + c.kv_heads], self._turns)
        share = c.heads // c.kv_heads
        q = heads[:, : c.heads].transpose(0, 1)
        k = heads[:, c.heads : c.heads + c.kv_heads].transpose(0, 1).repeat_interleave(share, 0)
        v = heads[:, c.heads + c.kv_heads :].transpose(0, 1).repeat_interleave(share, 0)
        mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, scale=1.0)
        return mixed[0].transpose(0, 1).reshape(heads.shape[0], -1)


def probe_ids(vocab_size: int, n: int) -> Tensor:
    """int64 [n]: ids soon after the single bytes, a vocabulary's most frequent pieces."""
    return ((torch.arange(n) * 7919 + 11) % 700 + 260) % vocab_size


def _per_kv(x: Tensor, config: ModelConfig) -> Tensor:
    """x [n, heads * d] -> [n * share, kv_heads * d]: heads that read one value head as rows."""
    split = x.view(x.shape[0], config.kv_heads, -1, config.head_dim)
    return split.transpose(1, 2).reshape(-1, config.kv_heads * config.head_dim)


def _factors(x: Tensor, weight: Tensor) -> Tensor:
    """Per channel, from activations x [n, d] and weight [n_out, d]: powers of two, fp32 [d].

    Rows of x count relative to their largest value, because that is what sets their rounding.
    """
    top = x.abs().amax(1, True).clamp_min_(1e-30)
    large, read = (x / top).square_().mean(0).sqrt_(), weight.square().mean(0).sqrt_()
    known = (large > 0) & (read > 0)
    exponent = _SHARE * large.log2() - (1 - _SHARE) * read.log2()
    middle = exponent[known].median() if bool(known.any()) else exponent.new_zeros(())
    steps = (exponent - middle).round_().clamp_(-_MOST, _MOST)
    return torch.where(known, steps, torch.zeros_like(steps)).exp2_()
