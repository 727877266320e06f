"""A Llama-family model on the native CPU kernels: a call per step, weights as the file has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engine.models.batch import Batch
from engine.models.config import ModelConfig
from engine.models.key_balance import BalancedKeys
from engine.models.weights import WeightSource, open_weights
from kernels import build
from kernels.decoder_step.native import Decoder, LayerWeights, ModelWeights
from kernels.linear_group.cpu import Arena, PackedLinear
from kernels.linear_group.spec import GROUP, LANES
from kernels.paged_attention.spec import SCALE_BYTES


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

    def __init__(self, model: NativeLlama, cache: Tensor, n_blocks: int, block_size: int) -> None:
        c, self._int8 = model.config, model.kv_int8
        blocks = cache.view(c.layers, n_blocks, c.kv_heads, -1)
        if self._int8:
            self._pieces = torch.unflatten(blocks, -1, (block_size // LANES, -1))
        else:
            keys, values = blocks.view(torch.half).chunk(2, -1)
            self._keys = torch.unflatten(keys, -1, (c.head_dim, block_size))
            self._values = torch.unflatten(values, -1, (block_size, c.head_dim))
        bits = 8 if self._int8 else 16
        cache = cache.view(c.layers, n_blocks, -1)
        self._decoder = Decoder(model.weights, cache, block_size, bits, model.threads)

    def __call__(self, batch: Batch) -> Tensor:
        tables = [row.blocks for row in batch.rows]
        return self._decoder.run(batch.token_ids, batch.positions, batch.ends, tables, batch.wanted)

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Copies the first n_rows positions of block src into block dst, in every layer."""
        if self._int8:
            self._copy_pieces(src, dst, n_rows)
        else:
            self._keys[:, dst, ..., :n_rows] = self._keys[:, src, ..., :n_rows]
            self._values[:, dst, :, :n_rows] = self._values[:, src, :, :n_rows]

    def _copy_pieces(self, src: int, dst: int, n_rows: int) -> None:
        """Codes and scales of sixteen positions lie as kernels/paged_attention/cpu_int8.h says."""
        for number in range(-(-n_rows // LANES)):
            n = min(LANES, n_rows - number * LANES)
            new, old = (self._pieces[:, block, :, number] for block in (dst, src))
            (to_keys, to_values, to_scales), (keys, values, scales) = _parts(new), _parts(old)
            to_keys[..., :n, :] = keys[..., :n, :]
            to_values[..., : n // 4, :, :] = values[..., : n // 4, :, :]
            if n % 4:
                to_values[..., n // 4, :, : n % 4] = values[..., n // 4, :, : n % 4]
            to_scales[..., :n] = scales[..., :n]


def _parts(pieces: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """uint8 [..., bytes of 16 positions] -> keys [..., d / 4, 16, 4], values [..., 4, d, 4], scales
    [..., 2, 16]."""
    n_codes = (pieces.shape[-1] - SCALE_BYTES) // 2
    keys, values = pieces[..., :n_codes], pieces[..., n_codes : 2 * n_codes]
    scales = pieces[..., 2 * n_codes :].view(torch.float32)
    return (
        torch.unflatten(keys, -1, (-1, LANES, 4)),
        torch.unflatten(values, -1, (4, -1, 4)),
        torch.unflatten(scales, -1, (2, LANES)),
    )


@dataclass(frozen=True, slots=True)
class NativeLlama:
    """Packed weights. Its cache is fp16 or int8, in an order of its own."""

    config: ModelConfig
    weights: ModelWeights
    threads: int
    kv_int8: bool

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        max_len: int | None,
        threads: int,
        block_size: int = 16,
        kv_int8: bool = False,
    ) -> NativeLlama:
        """Reads a GGUF file or safetensors folder; max_len None: the model's own limit.

        block_size: of the cache that it will run over; kv_int8: that holds keys and values in 8
        bits. Raises ModelError for an unusable file, NativeUnavailable where the kernels can't run
        it.
        """
        library = build.library()
        source = open_weights(path)
        try:
            reason = unsupported(source.config, block_size)
            if reason is not None:
                raise build.NativeUnavailable(f"the native kernels can't run this model: {reason}")
            if kv_int8:
                source = BalancedKeys(source)
            with torch.inference_mode(), ThreadPoolExecutor(2) as pool:
                weights = _load(source, Arena(library), max_len, pool)
            return cls(source.config, weights, threads, kv_int8)
        finally:
            source.close()

    @property
    def max_len(self) -> int:
        return self.weights.turns.shape[0]

    def block_bytes(self, block_size: int) -> int:
        c = self.config
        each = 2 * c.head_dim + SCALE_BYTES // LANES if self.kv_int8 else 4 * c.head_dim
        return c.layers * c.kv_heads * block_size * each

    def over(self, cache: Tensor, n_blocks: int, block_size: int) -> NativeForward:
        """Ready to run steps over this cache."""
        return NativeForward(self, cache, n_blocks, block_size)


def _load(
    source: WeightSource, arena: Arena, max_len: int | None, pool: ThreadPoolExecutor
) -> ModelWeights:
    c = source.config
    length = c.length(max_len)
    turns = torch.view_as_real(c.rope_turns(length, source.rope_factors()))

    def linear(name: str) -> PackedLinear:
        return PackedLinear(source.codes(name), arena)

    layers = list(pool.map(lambda number: _layer(source, number, linear), range(c.layers)))
    embed = source.codes("embed")
    head = linear("head") if source.has("head") else PackedLinear(embed, arena)
    return ModelWeights(
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
