"""The forward pass of the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen2.5)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ModelError
from engine.models.config import ModelConfig
from engine.models.layers import Layer, Linear, Quant, load_layer, make_linear
from engine.models.weights import WeightSource, open_weights
from kernels.paged_attention.reference import write_kv
from kernels.paged_attention.spec import Plan
from kernels.resolve import resolve


@dataclass(frozen=True, slots=True)
class Llama:
    """Weights ready to run. embed fp16 or fp32 [vocab, hidden]; turns complex64 [max_len, 1, d/2]."""

    config: ModelConfig
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    turns: Tensor

    @classmethod
    def load(cls, path: Path, *, quant: Quant, max_len: int | None, threads: int) -> Llama:
        """Reads a GGUF file or safetensors folder; max_len None: the model's own limit.

        ModelError says what is wrong with it."""
        source = open_weights(path)
        try:
            with torch.inference_mode(), ThreadPoolExecutor(max(1, threads)) as pool:
                return _load(source, quant, max_len, pool)
        finally:
            source.close()

    def hidden(self, token_ids: Tensor, positions: Tensor, cache: Tensor, plan: Plan) -> Tensor:
        """Runs every layer, storing keys and values. token_ids, positions int64 [n] ->  fp32 [n, hidden].

        cache fp32 [layers, 2, n_blocks, kv_heads, block_size, d].
        """
        rms_norm, rope = resolve("rms_norm"), resolve("rope")
        attend, silu_mul = resolve("paged_attention"), resolve("silu_mul")
        c = self.config
        rotated = c.heads + c.kv_heads
        x = self.embed.index_select(0, token_ids).float()
        turns = self.turns.index_select(0, positions)
        n = x.shape[0]
        for layer, kept in zip(self.layers, cache.unbind(0), strict=True):
            qkv = layer.qkv(rms_norm(x, layer.attn_norm, c.norm_eps), layer.qkv_bias)
            heads = qkv.view(n, rotated + c.kv_heads, c.head_dim)
            rope(heads[:, :rotated], turns)
            write_kv(kept, heads[:, c.heads :], plan.write)
            layer.o.add_to(x, attend(heads[:, : c.heads], kept, plan))
            layer.down.add_to(x, silu_mul(layer.gate_up(rms_norm(x, layer.mlp_norm, c.norm_eps))))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden fp32 [n, hidden], before the last norm -> fp32 [n, vocab]."""
        return self.head(resolve("rms_norm")(hidden, self.norm, self.config.norm_eps))


def _load(
    source: WeightSource, quant: Quant, max_len: int | None, pool: ThreadPoolExecutor
) -> Llama:
    c = source.config
    max_len = max_len or c.max_len
    if max_len > c.max_len:
        raise ModelError(f"the model reads at most {c.max_len} tokens, {max_len} were asked for")
    layers = pool.map(partial(load_layer, source, quant=quant), range(c.layers))
    embed = source.get("embed")
    head = make_linear(source.get("head") if source.has("head") else embed, quant)
    return Llama(
        config=c,
        embed=embed.half() if quant == "int8" else embed,
        layers=tuple(layers),
        norm=source.get("norm"),
        head=head,
        turns=c.rope_turns(max_len, source.rope_factors()).unsqueeze(1),
    )
