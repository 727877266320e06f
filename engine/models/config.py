"""The numbers that make one Llama-family model differ from another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelError

ARCHITECTURES = {"llama", "qwen2", "qwen3"}
"""Families by GGUF name: Llama 2/3, SmolLM2 and Mistral are "llama"; Qwen2 and 2.5 are "qwen2"."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3's stretch of the slow rotations (the `llama3` rope type)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_len: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Checked on construction; ModelError says which number is impossible.

    window: positions that a token attends to, its own included; 0 for all before it.
    """

    architecture: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    rope_base: float
    max_len: int
    rope_scaling: RopeScaling | None = None
    window: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ModelError(
                f"architecture {self.architecture!r} is not supported (supported: "
                f"{', '.join(sorted(ARCHITECTURES))})"
            )
        for name in (
            "vocab_size",
            "hidden",
            "layers",
            "heads",
            "kv_heads",
            "head_dim",
            "intermediate",
            "max_len",
        ):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} is {getattr(self, name)}: the model file is corrupt")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads can't share {self.kv_heads} key heads")
        if self.window < 0:
            raise ModelError(f"window is {self.window}: the model file is corrupt")
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd: rotary embedding needs pairs")

    def length(self, max_len: int | None) -> int:
        """Tokens to prepare for: max_len, or the model's limit. ModelError if it is beyond that."""
        if max_len is not None and max_len > self.max_len:
            raise ModelError(
                f"the model reads at most {self.max_len} tokens, {max_len} were asked for"
            )
        return max_len or self.max_len

    def rope_turns(self, n: int, factors: Tensor | None = None) -> Tensor:
        """Rotations of positions 0..n-1: complex64 [n, head_dim / 2].

        factors: fp32 [head_dim / 2] that divide the frequencies (GGUF's `rope_freqs.weight`).
        """
        power = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        frequency = 1.0 / self.rope_base**power
        if factors is not None:
            frequency = frequency / factors
        elif self.rope_scaling is not None:
            frequency = _llama3(frequency, self.rope_scaling)
        angle = torch.arange(n, dtype=torch.float32)[:, None] * frequency
        return torch.polar(torch.ones_like(angle), angle)


def _llama3(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    wavelength = 2 * math.pi / frequency
    low = scaling.original_len / scaling.low_freq_factor
    high = scaling.original_len / scaling.high_freq_factor
    blend = (scaling.original_len / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    mixed = (1 - blend) * frequency / scaling.factor + blend * frequency
    slow = torch.where(wavelength > low, frequency / scaling.factor, mixed)
    return torch.where(wavelength < high, frequency, slow)


def from_gguf(meta: dict[str, Any], vocab_size: int) -> ModelConfig:
    """The config in a GGUF file's metadata."""
    arch = str(meta.get("general.architecture", ""))
    if arch not in ARCHITECTURES:
        raise ModelError(
            f"architecture {arch!r} is not supported (supported: "
            f"{', '.join(sorted(ARCHITECTURES))})"
        )

    def get(key: str, default: Any = None) -> Any:
        value = meta.get(f"{arch}.{key}", default)
        if value is None:
            raise ModelError(f"the GGUF file has no {arch}.{key}")
        return value

    kind = meta.get(f"{arch}.rope.scaling.type", "none")
    if kind not in ("none", None):
        raise ModelError(f"rope scaling {kind!r} is not supported")
    heads = int(get("attention.head_count"))
    hidden = int(get("embedding_length"))
    return ModelConfig(
        architecture=arch,
        vocab_size=vocab_size,
        hidden=hidden,
        layers=int(get("block_count")),
        heads=heads,
        kv_heads=int(get("attention.head_count_kv", heads)),
        head_dim=int(get("attention.key_length", hidden // max(heads, 1))),
        intermediate=int(get("feed_forward_length")),
        norm_eps=float(get("attention.layer_norm_rms_epsilon")),
        rope_base=float(get("rope.freq_base", 10_000.0)),
        max_len=int(get("context_length")),
        window=int(get("attention.sliding_window", 0)),
    )


def from_hf(config: dict[str, Any]) -> ModelConfig:
    """The config in a Hugging Face `config.json`."""
    kind = str(config.get("model_type", ""))
    arch = "llama" if kind == "mistral" else kind
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"activation {config['hidden_act']!r} is not supported")
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        return ModelConfig(
            architecture=arch,
            vocab_size=int(config["vocab_size"]),
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_base=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            max_len=int(config.get("max_position_embeddings", 2048)),
            rope_scaling=_hf_scaling(rope),
            window=_hf_window(config, kind),
        )
    except KeyError as missing:
        raise ModelError(f"config.json has no {missing.args[0]}") from None
    except (TypeError, ValueError, ZeroDivisionError) as bad:
        raise ModelError(f"config.json holds an impossible number: {bad}") from None


def _hf_window(config: dict[str, Any], kind: str) -> int:
    """One window for all layers, or none: Mistral has it where it is given, Qwen where it is on."""
    if not config.get("use_sliding_window", kind == "mistral"):
        return 0
    layers, full = int(config["num_hidden_layers"]), int(config.get("max_window_layers", 0))
    kinds = config.get("layer_types") or [
        "full_attention" if number < full else "sliding_attention" for number in range(layers)
    ]
    if len(set(kinds)) > 1:
        raise ModelError("sliding-window attention in some layers only is not supported")
    return int(config.get("sliding_window") or 0) if kinds[0] == "sliding_attention" else 0


def _hf_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(f"rope scaling {kind!r} is not supported")
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_len=int(rope["original_max_position_embeddings"]),
    )
