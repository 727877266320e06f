"""Where weights come from: a GGUF file or a folder of safetensors, under one set of names.

Names: `embed`, `head`, `norm`, and per layer `3.attn_norm`, `3.q`, `3.q_bias`, `3.q_norm`, `3.k`,
`3.v`, `3.o`, `3.mlp_norm`, `3.gate`, `3.up`, `3.down`. Rows of q and k come in the interleaved
layout of `kernels.rope`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelError
from engine.models.config import ModelConfig, from_gguf, from_hf
from kernels.linear_group.spec import Codes, quantise

_GGUF = {
    "embed": "token_embd.weight", "head": "output.weight", "norm": "output_norm.weight",
    "attn_norm": "attn_norm.weight", "q": "attn_q.weight", "k": "attn_k.weight",
    "v": "attn_v.weight", "q_bias": "attn_q.bias", "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias", "o": "attn_output.weight", "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight", "up": "ffn_up.weight", "down": "ffn_down.weight",
    "q_norm": "attn_q_norm.weight", "k_norm": "attn_k_norm.weight",
}  # fmt: skip
_HF = {
    "embed": "model.embed_tokens.weight", "head": "lm_head.weight", "norm": "model.norm.weight",
    "attn_norm": "input_layernorm.weight", "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias", "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias", "o": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight", "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
    "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight",
}  # fmt: skip


class WeightSource(Protocol):
    """A readable set of weights."""

    config: ModelConfig

    def has(self, name: str) -> bool:
        """Whether the weight exists (biases, head norms and `head` may not)."""

    def get(self, name: str) -> Tensor:
        """The weight as fp32 in its own memory. ModelError if absent or of the wrong shape."""

    def codes(self, name: str, bits: int = 8) -> Codes:
        """The weight in groups of 32 inputs: as the file has it, or rounded to 8 bits.

        bits: 4 or 8, to round to where the file has half precision or more.
        """

    def rope_factors(self) -> Tensor | None:
        """fp32 [head_dim / 2] that divide the rotary frequencies, if the file has them."""

    def close(self) -> None:
        """Frees the file."""


def open_weights(path: Path) -> WeightSource:
    """Opens a `.gguf` file or a folder with `config.json` and `*.safetensors`."""
    if path.is_dir():
        return SafetensorsWeights(path)
    if not path.exists():
        raise ModelError(f"{path} does not exist")
    return GgufWeights(path)


def interleave(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from half-split (i, i + d/2) to interleaved (2i, 2i + 1) pairs."""
    rest = weight.shape[1:]
    return weight.view(heads, 2, -1, *rest).transpose(1, 2).reshape(weight.shape)


def halve(weight: Tensor, heads: int) -> Tensor:
    """The inverse of `interleave`."""
    rest = weight.shape[1:]
    return weight.view(heads, -1, 2, *rest).transpose(1, 2).reshape(weight.shape)


class GgufWeights:
    """Weights of one GGUF file."""

    def __init__(self, path: Path) -> None:
        from engine.models.gguf_file import GgufFile  # only these files need the gguf package

        self.file = GgufFile(path)
        embed = self.file.tensors.get("token_embd.weight")
        if embed is None:
            raise ModelError(f"{path} has no tensor token_embd.weight")
        self.config = from_gguf(self.file.meta, embed.shape[0])

    def has(self, name: str) -> bool:
        return self._name(name) in self.file.tensors

    def get(self, name: str) -> Tensor:
        weight = _checked(name, self.file.tensor(self._name(name)), self.config)
        # Converters write Llama's q and k interleaved already, and Qwen's half-split.
        return weight if self.config.architecture == "llama" else _rotary(name, weight, self.config)

    def codes(self, name: str, bits: int = 8) -> Codes:
        from engine.models.gguf_codes import DENSE, KINDS

        part = name.rpartition(".")[2]
        shape = weight_shape(part, self.config)
        info = self.file.tensors.get(self._name(name))
        if info is None or info.kind not in KINDS or info.shape != shape:
            return quantise(self.get(name), bits if info and info.kind in DENSE else 8)
        codes = self.file.codes(info)
        for values in (codes.scale, codes.shift):
            if values is not None and not bool(torch.isfinite(values).all()):
                raise _not_finite(name)
        heads = {"q": self.config.heads, "k": self.config.kv_heads}.get(part)
        if heads is None or self.config.architecture == "llama":
            return codes
        return codes.rows(interleave(torch.arange(shape[0]), heads))

    def rope_factors(self) -> Tensor | None:
        have = "rope_freqs.weight" in self.file.tensors
        return self.file.tensor("rope_freqs.weight") if have else None

    def close(self) -> None:
        self.file.close()

    @staticmethod
    def _name(name: str) -> str:
        layer, _, part = name.rpartition(".")
        return f"blk.{layer}.{_GGUF[part]}" if layer else _GGUF[part]


class SafetensorsWeights:
    """Weights of a folder as `save_pretrained` writes it, in one file or several."""

    def __init__(self, folder: Path) -> None:
        self.config = from_hf(read_json(folder / "config.json"))
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelError(f"{folder} holds no .safetensors file")
        self._where: dict[str, Any] = {}
        for file in files:
            try:
                handle: Any = safe_open(file, framework="pt")
                self._where.update(dict.fromkeys(handle.keys(), handle))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{file} is truncated or corrupt ({error})") from None

    def has(self, name: str) -> bool:
        return self._name(name) in self._where

    def get(self, name: str) -> Tensor:
        key = self._name(name)
        if key not in self._where:
            raise ModelError(f"the model has no tensor {key}")
        weight = self._where[key].get_tensor(key).to(torch.float32, copy=True)
        return _rotary(name, _checked(name, weight, self.config), self.config)

    def codes(self, name: str, bits: int = 8) -> Codes:
        return quantise(self.get(name), bits)

    def rope_factors(self) -> Tensor | None:
        return None

    def close(self) -> None:
        self._where.clear()

    @staticmethod
    def _name(name: str) -> str:
        layer, _, part = name.rpartition(".")
        return f"model.layers.{layer}.{_HF[part]}" if layer else _HF[part]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. ModelError names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value


def weight_shape(part: str, config: ModelConfig) -> tuple[int, ...]:
    """The shape that a weight of this config must have."""
    c = config
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (c.vocab_size, c.hidden), "head": (c.vocab_size, c.hidden), "norm": (c.hidden,),
        "attn_norm": (c.hidden,), "mlp_norm": (c.hidden,), "o": (c.hidden, q),
        "q": (q, c.hidden), "k": (kv, c.hidden), "v": (kv, c.hidden),
        "q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,),
        "q_norm": (c.head_dim,), "k_norm": (c.head_dim,),
        "gate": (c.intermediate, c.hidden), "up": (c.intermediate, c.hidden),
        "down": (c.hidden, c.intermediate),
    }  # fmt: skip
    return shapes[part]


def _rotary(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    part = re.sub(r"^\d+\.|_bias$", "", name)
    if part in ("q_norm", "k_norm"):
        return interleave(weight, 1)
    if part == "q":
        return interleave(weight, config.heads)
    return interleave(weight, config.kv_heads) if part == "k" else weight


def _checked(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    expected = weight_shape(name.rpartition(".")[2], config)
    if tuple(weight.shape) != expected:
        raise ModelError(f"weight {name} has shape {tuple(weight.shape)}, expected {expected}")
    if not bool(torch.isfinite(weight).all()):
        raise _not_finite(name)
    return weight


def _not_finite(name: str) -> ModelError:
    return ModelError(f"weight {name} holds numbers that are not finite: the file is corrupt")
