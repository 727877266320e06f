"""The forward pass of the Llama family on the kernels of a GPU (or on their references).

Half precision throughout: products on the vendor's library or on packed codes, everything between
them in our kernels, keys and values in the paged cache. What a step attends to comes in as tensors,
so that the same call can be recorded in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.gpu_linear import (
    DenseProjection,
    GpuQuant,
    Projection,
    make_projection,
    random_projection,
)
from engine.models.key_balance import BalancedKeys
from engine.models.weights import WeightSource, open_weights
from kernels.resolve import resolve

Attend = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(q [n, heads, d], one layer's cache, its scales if that is int8) -> [n, heads, d]."""


@dataclass(frozen=True, slots=True)
class DeviceKv:
    """A paged cache [layers, 2, blocks, kv_heads, block_size, d], in a model's dtype or int8, and
    then scales fp32 [layers, 2, blocks, kv_heads, block_size]."""

    data: Tensor
    scales: Tensor | None

    @classmethod
    def zeros(cls, model: GpuLlama, n_blocks: int, block_size: int, *, int8: bool) -> DeviceKv:
        c, device = model.config, model.device
        rows = (c.layers, 2, n_blocks, c.kv_heads, block_size)
        if not int8:
            return cls(torch.zeros((*rows, c.head_dim), dtype=model.dtype, device=device), None)
        codes = torch.zeros((*rows, c.head_dim), dtype=torch.int8, device=device)
        return cls(codes, torch.zeros(rows, dtype=torch.float32, device=device))

    def layer(self, number: int) -> tuple[Tensor, Tensor | None]:
        return self.data[number], None if self.scales is None else self.scales[number]


@dataclass(frozen=True, slots=True)
class GpuLayer:
    """One layer. q, k and v are one product, gate and up another."""

    attn_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class GpuLlama:
    """Weights on their device. embed [vocab, hidden]; cos_sin fp32 [max_len, head_dim].

    A rotation of pair i is (cos, sin) at columns 2 i and 2 i + 1.
    """

    config: ModelConfig
    embed: Tensor
    layers: tuple[GpuLayer, ...]
    norm: Tensor
    head: Projection
    cos_sin: Tensor

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        device: str,
        dtype: torch.dtype,
        quant: GpuQuant,
        max_len: int | None,
        balanced: bool = False,
    ) -> GpuLlama:
        """Reads a GGUF file or safetensors folder; max_len None: the model's own limit.

        dtype: of activations, and of weights that quant leaves dense. balanced: keys are made even
        for a cache in 8 bits. ModelError says what is wrong with the file.
        """
        source = BalancedKeys(open_weights(path)) if balanced else open_weights(path)
        try:
            with torch.inference_mode():
                return _load(source, torch.device(device), dtype, quant, max_len)
        finally:
            source.close()

    @classmethod
    def random(
        cls,
        config: ModelConfig,
        *,
        device: str,
        dtype: torch.dtype,
        quant: GpuQuant = "dense",
        seed: int = 0,
        max_len: int | None = None,
    ) -> GpuLlama:
        """A model of exactly this shape with seeded random weights, made on the device."""
        with torch.inference_mode():
            return _random(config, torch.device(device), dtype, quant, seed, max_len)

    @property
    def max_len(self) -> int:
        return self.cos_sin.shape[0]

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.config.head_dim)

    @property
    def weight_bytes(self) -> int:
        """Bytes that a decode step reads of the weights."""
        parts = [self.head, *(p for x in self.layers for p in (x.qkv, x.o, x.gate_up, x.down))]
        return sum(part.n_bytes for part in parts)

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        cache: DeviceKv,
        attend: Attend,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Runs every layer, storing keys and values.

        ids, positions, slots int64 [n] (slots: block * block_size + offset, negative: not stored);
        wanted int64 [m]: the tokens to return, or None for all. Returns [m, hidden] after the last
        norm.
        """
        kernels = _Kernels.of(self.device.type)
        c, n = self.config, ids.shape[0]
        eps, rotated = c.norm_eps, c.heads + c.kv_heads
        residual = F.embedding(ids, self.embed)
        x: Tensor = kernels.rms_norm(residual, self.layers[0].attn_norm, eps)
        for number, layer in enumerate(self.layers):
            heads = layer.qkv(x).view(n, rotated + c.kv_heads, c.head_dim)
            q, k = heads[:, : c.heads], heads[:, c.heads : rotated]
            if layer.q_norm is not None and layer.k_norm is not None:
                q = kernels.rms_norm(q.reshape(-1, c.head_dim), layer.q_norm, eps).view(q.shape)
                k = kernels.rms_norm(k.reshape(-1, c.head_dim), layer.k_norm, eps).view(k.shape)
            kernels.rope_at(q, k, self.cos_sin, positions)
            kept, scales = cache.layer(number)
            kernels.kv_write(k, heads[:, rotated:], kept, slots, scales)
            mixed = attend(q, kept, scales)
            x = layer.o(mixed.reshape(n, c.heads * c.head_dim))
            x = kernels.rms_norm_add(x, residual, layer.mlp_norm, eps)
            x = layer.down(kernels.silu_mul(layer.gate_up(x)))
            last = number + 1 == len(self.layers)
            if last and wanted is not None:
                if wanted.shape[0] == 0:
                    return x[:0]
                x, residual = x.index_select(0, wanted), residual.index_select(0, wanted)
            after = self.norm if last else self.layers[number + 1].attn_norm
            x = kernels.rms_norm_add(x, residual, after, eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [n, hidden] -> [n, vocab]."""
        return self.head(hidden)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The operations between the products, as chosen for a device."""

    rms_norm: Any
    rms_norm_add: Any
    rope_at: Any
    kv_write: Any
    silu_mul: Any

    @staticmethod
    def of(device: str) -> _Kernels:
        names = ("rms_norm", "rms_norm_add", "rope_at", "kv_write", "silu_mul")
        return _Kernels(*(resolve(name, device) for name in names))


def _load(
    source: WeightSource,
    device: torch.device,
    dtype: torch.dtype,
    quant: GpuQuant,
    max_len: int | None,
) -> GpuLlama:
    c = source.config

    def vector(name: str) -> Tensor:
        return source.get(name).to(device, dtype)

    def maybe(name: str) -> Tensor | None:
        return vector(name) if source.has(name) else None

    def project(*names: str, biased: bool = False) -> Projection:
        bias = None
        if biased:
            bias = torch.cat([source.get(f"{name}_bias") for name in names]).to(device, dtype)
        return make_projection(source, names, bias, device, dtype, quant)

    layers = tuple(
        GpuLayer(
            attn_norm=vector(f"{i}.attn_norm"),
            qkv=project(f"{i}.q", f"{i}.k", f"{i}.v", biased=source.has(f"{i}.q_bias")),
            q_norm=maybe(f"{i}.q_norm"),
            k_norm=maybe(f"{i}.k_norm"),
            o=project(f"{i}.o"),
            mlp_norm=vector(f"{i}.mlp_norm"),
            gate_up=project(f"{i}.gate", f"{i}.up"),
            down=project(f"{i}.down"),
        )
        for i in range(c.layers)
    )
    embed = vector("embed")
    head = project("head" if source.has("head") else "embed")
    if quant == "dense" and not source.has("head"):
        head = DenseProjection(embed)
    turns = c.rope_turns(c.length(max_len), source.rope_factors())
    return GpuLlama(c, embed, layers, vector("norm"), head, _cos_sin(turns, device))


def _random(
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    quant: GpuQuant,
    seed: int,
    max_len: int | None,
) -> GpuLlama:
    c = config
    generator = torch.Generator(device).manual_seed(seed)
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    biased, normed = c.architecture == "qwen2", c.architecture == "qwen3"

    def normal(*shape: int) -> Tensor:
        made = torch.empty(shape, dtype=dtype, device=device)
        made.normal_(0.0, 1.0 / math.sqrt(shape[-1]), generator=generator)
        return made

    def ones(n: int) -> Tensor:
        return torch.ones(n, dtype=dtype, device=device)

    def project(n_in: int, n_out: int, bias: Tensor | None = None) -> Projection:
        return random_projection(n_in, n_out, bias, generator, dtype, quant)

    def layers() -> Iterator[GpuLayer]:
        for _ in range(c.layers):
            yield GpuLayer(
                attn_norm=ones(c.hidden),
                qkv=project(c.hidden, q + 2 * kv, normal(q + 2 * kv) if biased else None),
                q_norm=ones(c.head_dim) if normed else None,
                k_norm=ones(c.head_dim) if normed else None,
                o=project(q, c.hidden),
                mlp_norm=ones(c.hidden),
                gate_up=project(c.hidden, 2 * c.intermediate),
                down=project(c.intermediate, c.hidden),
            )

    made = tuple(layers())
    embed = normal(c.vocab_size, c.hidden)
    head = project(c.hidden, c.vocab_size)
    turns = c.rope_turns(c.length(max_len))
    return GpuLlama(c, embed, made, ones(c.hidden), head, _cos_sin(turns, device))


def _cos_sin(turns: Tensor, device: torch.device) -> Tensor:
    """turns complex64 [n, d / 2] -> fp32 [n, d]."""
    return torch.view_as_real(turns).reshape(turns.shape[0], -1).contiguous().to(device)
