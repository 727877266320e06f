"""Builds a `transformers` model from a GGUF file's dequantised weights, to judge ours by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from engine.models.weights import GgufWeights, halve

_NAMES = {
    "attn_norm": "input_layernorm.weight", "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight", "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias", "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias", "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
}  # fmt: skip


def transformers_model(path: Path) -> Any:
    """An fp32 model in evaluation mode, holding exactly the file's weights."""
    source = GgufWeights(path)
    c = source.config
    shape: dict[str, Any] = {
        "vocab_size": c.vocab_size, "hidden_size": c.hidden, "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads,
        "intermediate_size": c.intermediate, "rms_norm_eps": c.norm_eps,
        "max_position_embeddings": c.max_len, "tie_word_embeddings": not source.has("head"),
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_base},
    }  # fmt: skip
    state: dict[str, Tensor] = {
        "model.embed_tokens.weight": source.get("embed"),
        "model.norm.weight": source.get("norm"),
    }
    state["lm_head.weight"] = (
        source.get("head") if source.has("head") else state["model.embed_tokens.weight"]
    )
    for layer in range(c.layers):
        for name, theirs in _NAMES.items():
            if not source.has(f"{layer}.{name}"):
                continue
            weight = source.get(f"{layer}.{name}")
            if name[0] in "qk":
                weight = halve(weight, c.heads if name[0] == "q" else c.kv_heads)
            state[f"model.layers.{layer}.{theirs}"] = weight
    with torch.device("meta"):
        model: Any = (
            Qwen2ForCausalLM(Qwen2Config(**shape))
            if c.architecture == "qwen2"
            else LlamaForCausalLM(LlamaConfig(**shape))
        )
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    source.close()
    return model.eval()
