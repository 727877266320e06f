"""A Llama-family model on the native CPU kernels: a call per step, weights as the file has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.models.batch import Batch
from engine.models.config import ModelConfig
from engine.models.weights import WeightSource, open_weights
from kernels import build
from kernels.decoder_step.native import Decoder, LayerWeights, ModelWeights
from kernels.linear_group.cpu import Arena, PackedLinear
from kernels.linear_group.spec import GROUP, LANES


def unsupported(config: ModelConfig, block_size: int) -> str | None:
    """Why the native kernels can't run a model of this shape, or None."""
    c = config
    if block_size % LANES:
        return f"block_size {block_size} is no multiple of {LANES}"
    for name in ("hidden", "intermediate"):
        if getattr(c, name) % GROUP:
            return f"{name} {getattr(c, name)} is no multiple of {GROUP}"
    if c.heads * c.head_dim % GROUP or c.head_dim % LANES:
        return f"head_dim {c.head_dim} is no multiple of {LANES}"
    return None


class NativeForward:
    """The model over one paged cache."""

    def __init__(self, model: NativeLlama, cache: Tensor) -> None:
        layers, _, n_blocks, kv_heads, block_size, d = cache.shape
        cache = cache.view(layers, n_blocks, kv_heads, 2, block_size * d)
        keys, values = cache.unbind(3)
        self._keys = keys.view(layers, n_blocks, kv_heads, d, block_size)
        self._values = values.view(layers, n_blocks, kv_heads, block_size, d)
        self._decoder = Decoder(model.weights, cache, model.threads)

    def __call__(self, batch: Batch) -> Tensor:
        tables = [row.blocks for row in batch.rows]
        return self._decoder.run(batch.token_ids, batch.positions, batch.ends, tables, batch.wanted)

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Copies the first n_rows positions of block src into block dst, in every layer."""
        self._keys[:, dst, ..., :n_rows] = self._keys[:, src, ..., :n_rows]
        self._values[:, dst, :, :n_rows] = self._values[:, src, :, :n_rows]


@dataclass(frozen=True, slots=True)
class NativeLlama:
    """Packed weights. Its cache is fp16, in an order of its own."""

    kv_dtype = np.dtype(np.float16)

    config: ModelConfig
    weights: ModelWeights
    threads: int

    @classmethod
    def load(
        cls, path: Path, *, max_len: int | None, threads: int, block_size: int = 16
    ) -> NativeLlama:
        """Reads a GGUF file or safetensors folder; max_len None: the model's own limit.

        block_size: of the cache that it will run over. Raises ModelError for an unusable file,
        NativeUnavailable where the kernels can't run it.
        """
        library = build.library()
        source = open_weights(path)
        try:
            reason = unsupported(source.config, block_size)
            if reason is not None:
                raise build.NativeUnavailable(f"the native kernels can't run this model: {reason}")
            with torch.inference_mode(), ThreadPoolExecutor(2) as pool:
                return _load(source, Arena(library), max_len, threads, pool)
        finally:
            source.close()

    @property
    def max_len(self) -> int:
        return self.weights.turns.shape[0]

    def over(self, cache: Tensor) -> NativeForward:
        """Ready to run steps over this cache."""
        return NativeForward(self, cache)


def _load(
    source: WeightSource,
    arena: Arena,
    max_len: int | None,
    threads: int,
    pool: ThreadPoolExecutor,
) -> NativeLlama:
    c = source.config
    length = c.length(max_len)
    turns = torch.view_as_real(c.rope_turns(length, source.rope_factors()))

    def linear(name: str) -> PackedLinear:
        return PackedLinear(source.codes(name), arena)

    layers = list(pool.map(lambda number: _layer(source, number, linear), range(c.layers)))
    embed = source.codes("embed")
    head = linear("head") if source.has("head") else PackedLinear(embed, arena)
    weights = ModelWeights(
        embed=embed,
        layers=tuple(layers),
        norm=source.get("norm"),
        head=head,
        turns=turns.reshape(length, c.head_dim).contiguous(),
        hidden=c.hidden,
        heads=c.heads,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        intermediate=c.intermediate,
        norm_eps=c.norm_eps,
        scale=1.0 / math.sqrt(c.head_dim),
        window=c.window,
        library=arena.library,
    )
    return NativeLlama(c, weights, threads)


def _layer(
    source: WeightSource, number: int, linear: Callable[[str], PackedLinear]
) -> LayerWeights:
    def maybe(part: str) -> Tensor | None:
        name = f"{number}.{part}"
        return source.get(name) if source.has(name) else None

    return LayerWeights(
        attn_norm=source.get(f"{number}.attn_norm"),
        mlp_norm=source.get(f"{number}.mlp_norm"),
        q_norm=maybe("q_norm"),
        k_norm=maybe("k_norm"),
        q_bias=maybe("q_bias"),
        k_bias=maybe("k_bias"),
        v_bias=maybe("v_bias"),
        q=linear(f"{number}.q"),
        k=linear(f"{number}.k"),
        v=linear(f"{number}.v"),
        o=linear(f"{number}.o"),
        gate=linear(f"{number}.gate"),
        up=linear(f"{number}.up"),
        down=linear(f"{number}.down"),
    )
