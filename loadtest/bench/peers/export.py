"""Writes a shipped GGUF file as a Hugging Face folder, for peers that read nothing else.

The weights are the shipped ones, dequantised: what a peer computes from them is the reference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import decoders
from torch import Tensor

from engine.errors import ModelError
from engine.models.config import ModelConfig
from engine.models.weights import WeightSource, halve, open_weights
from engine.text.load import load_text
from engine.text.tokenizer import Tokenizer

_LAYER = {
    "attn_norm": "input_layernorm.weight", "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight", "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias", "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias", "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
}  # fmt: skip
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def export(model: Path, folder: Path) -> None:
    """`config.json`, `model.safetensors` (fp32), `tokenizer.json`. Raises ModelError."""
    tokenizer, _ = load_text(model)
    export_weights(model, folder, eos=tokenizer.declared_eos)
    _write_tokenizer(tokenizer, folder)


def export_weights(model: Path, folder: Path, *, eos: int | None = None) -> None:
    """Everything but the tokenizer. Raises ModelError."""
    folder.mkdir(parents=True, exist_ok=True)
    source = open_weights(model)
    try:
        if source.config.architecture not in _CLASSES:
            raise ModelError(f"{model}: {source.config.architecture} is not written for peers")
        save_file(_tensors(source), folder / "model.safetensors", {"format": "pt"})
        config = _config(source.config, not source.has("head"), eos)
    finally:
        source.close()
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def _tensors(source: WeightSource) -> dict[str, Tensor]:
    c = source.config
    out = {
        "model.embed_tokens.weight": source.get("embed"),
        "model.norm.weight": source.get("norm"),
    }
    if source.has("head"):
        out["lm_head.weight"] = source.get("head")
    for number in range(c.layers):
        for name, theirs in _LAYER.items():
            if not source.has(f"{number}.{name}"):
                continue
            weight = source.get(f"{number}.{name}")
            if name in ("q", "q_bias", "k", "k_bias"):
                weight = halve(weight, c.heads if name[0] == "q" else c.kv_heads)
            out[f"model.layers.{number}.{theirs}"] = weight.contiguous()
    return out


def _config(c: ModelConfig, tied: bool, eos: int | None) -> dict[str, Any]:
    return {
        "architectures": [_CLASSES[c.architecture]],
        "model_type": c.architecture,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden,
        "intermediate_size": c.intermediate,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_len,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_base,
        "tie_word_embeddings": tied,
        "eos_token_id": eos,
        "torch_dtype": "float32",
    }


def _write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    coder: Any = tokenizer._coder
    coder.decoder = decoders.ByteLevel()
    spec = json.loads(coder.to_str())
    spec["model"]["vocab"].update(tokenizer.special)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    spec["added_tokens"] = [
        {"id": number, "content": text, "special": True, **flags}
        for text, number in sorted(tokenizer.special.items(), key=lambda item: item[1])
    ]
    (folder / "tokenizer.json").write_text(json.dumps(spec), "utf-8")
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.special_text(tokenizer.declared_eos),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
