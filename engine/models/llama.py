"""The forward pass of the Llama family in PyTorch (Llama, SmolLM2, Mistral, Qwen2, 2.5 and 3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.balance import Balancer
from engine.models.batch import Batch
from engine.models.config import ModelConfig
from engine.models.layers import (
    Layer,
    Linear,
    Quant,
    RawLayer,
    make_linear,
    norm_heads,
    pack_layer,
    read_layer,
)
from engine.models.weights import WeightSource, open_weights
from kernels.paged_attention.reference import plan, write_kv
from kernels.paged_attention.spec import Plan
from kernels.resolve import resolve


class TorchForward:
    """The model over one paged cache, fp32 [layers, 2, n_blocks, kv_heads, block_size, d]."""

    def __init__(self, model: Llama, cache: Tensor) -> None:
        self._model = model
        self._cache = cache

    def __call__(self, batch: Batch) -> Tensor:
        model, (n_blocks, kv_heads, block_size) = self._model, self._cache.shape[2:5]
        steps = plan(
            batch.spans(),
            kv_heads=kv_heads,
            block_size=block_size,
            n_blocks=n_blocks,
            window=model.config.window,
        )
        ids, positions = torch.from_numpy(batch.token_ids), torch.from_numpy(batch.positions)
        with torch.inference_mode():
            hidden = model.hidden(ids, positions, self._cache, steps)
            return model.logits(hidden.index_select(0, torch.from_numpy(batch.wanted)))

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Copies the first n_rows positions of block src into block dst, in every layer."""
        with torch.inference_mode():
            self._cache[:, :, dst, :, :n_rows].copy_(self._cache[:, :, src, :, :n_rows])


@dataclass(frozen=True, slots=True)
class Llama:
    """Weights ready to run. embed fp16 or fp32 [vocab, hidden]; turns complex64 [n, 1, d/2]."""

    config: ModelConfig
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    turns: Tensor

    @classmethod
    def load(cls, path: Path, *, quant: Quant, max_len: int | None, threads: int = 1) -> Llama:
        """Reads a GGUF file or safetensors folder; max_len None: the model's own limit.

        ModelError says what is wrong with it."""
        source = open_weights(path)
        try:
            with torch.inference_mode(), ThreadPoolExecutor(max(1, threads)) as pool:
                return _load(source, quant, max_len, pool)
        finally:
            source.close()

    @property
    def max_len(self) -> int:
        return self.turns.shape[0]

    def block_bytes(self, block_size: int) -> int:
        c = self.config
        return 4 * 2 * c.layers * c.kv_heads * c.head_dim * block_size

    def over(self, cache: Tensor, n_blocks: int, block_size: int) -> TorchForward:
        """Ready to run steps over this cache."""
        c = self.config
        shape = (c.layers, 2, n_blocks, c.kv_heads, block_size, c.head_dim)
        return TorchForward(self, cache.view(torch.float32).view(shape))

    def hidden(self, token_ids: Tensor, positions: Tensor, cache: Tensor, plan: Plan) -> Tensor:
        """Runs every layer, storing keys and values.

        token_ids, positions int64 [n] -> fp32 [n, hidden], before the last norm.
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
            norm_heads(heads, layer, c.heads, c.kv_heads, c.norm_eps)
            rope(heads[:, :rotated], turns)
            write_kv(kept, heads[:, c.heads :], plan.write)
            layer.o.add_to(x, attend(heads[:, : c.heads], kept, plan))
            layer.down.add_to(x, silu_mul(layer.gate_up(rms_norm(x, layer.mlp_norm, c.norm_eps))))
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden fp32 [n, hidden], before the last norm -> fp32 [n, vocab]."""
        return self.head(resolve("rms_norm")(hidden, self.norm, self.config.norm_eps))


def _load(source: WeightSource, quant: Quant, max_len: int | None, pool: Executor) -> Llama:
    c = source.config
    turns = c.rope_turns(c.length(max_len), source.rope_factors()).unsqueeze(1)
    embed, norm = source.get("embed"), source.get("norm")
    balancer = Balancer(c, embed, turns) if quant == "int8" else None
    packed: list[Future[Layer]] = []
    for raw in _layers(source, pool):
        if balancer is not None:
            balancer.balance(raw)
        packed.append(pool.submit(pack_layer, raw, quant))
    head = source.get("head") if source.has("head") else embed
    if balancer is not None:
        embed = embed.half()
        balancer.balance_head(norm, head)
    return Llama(
        config=c,
        embed=embed,
        layers=tuple(layer.result() for layer in packed),
        norm=norm,
        head=make_linear(head, quant),
        turns=turns,
    )


def _layers(source: WeightSource, pool: Executor) -> Iterator[RawLayer]:
    """Every layer in order, read two ahead: the fp32 weights never all exist at once."""
    waiting: deque[Future[RawLayer]] = deque()
    for number in range(source.config.layers):
        waiting.append(pool.submit(read_layer, source, number))
        if len(waiting) > 2:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
