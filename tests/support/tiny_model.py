"""Tiny random models: written by `transformers`, so that it is the judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 97
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
KINDS = ("llama", "llama3-rope", "mistral", "mistral-window", "qwen2", "qwen2-tied", "qwen3")
WINDOW = 11
"""Of "mistral-window": shorter than the tests' sequences, and no part of a block."""


def build(kind: str) -> Any:
    """A random model of `transformers`, fp32, in evaluation mode; the same for every call."""
    torch.manual_seed(7)
    if kind.startswith("qwen2"):
        shape = {key: value for key, value in _SHAPE.items() if key != "head_dim"}
        config = Qwen2Config(**shape, tie_word_embeddings=kind == "qwen2-tied")
        model = Qwen2ForCausalLM(config)
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, tie_word_embeddings=True))
    elif kind.startswith("mistral"):
        window = WINDOW if kind == "mistral-window" else None
        model = MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=window))
    else:
        rope = _LLAMA3 if kind == "llama3-rope" else {"rope_type": "default", "rope_theta": 500.0}
        model = LlamaForCausalLM(
            LlamaConfig(**_SHAPE, rope_parameters=rope, tie_word_embeddings=False)
        )
    for name, weight in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            torch.nn.init.normal_(weight, 1.0 if name.endswith("weight") else 0.0, 0.3)
    return model.float().eval()


def save(kind: str, folder: Path) -> Any:
    """Writes `config.json` and `model.safetensors`; returns the model."""
    model = build(kind)
    model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == _SHAPE["hidden_size"]
    return model
