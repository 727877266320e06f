"""Balancing channels changes no exact result, and makes rounding to 8 bits cost less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.inputs import Row
from engine.models.balance import Balancer
from engine.models.layers import DenseLinear, Quant, make_linear, pack_layer, read_layer
from engine.models.llama import Llama
from engine.models.weights import WeightSource, open_weights
from engine.runner import Runner
from tests.support import tiny_model

pytestmark = pytest.mark.unit

ROW = Row(tuple(range(60)), 0, (0, 1, 2, 3), None)


def outlying(kind: str, folder: Path) -> Path:
    """A model with channels that are far larger than the rest, as real ones have."""
    model: Any = tiny_model.build(kind)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[5] *= 60
            layer.self_attn.q_proj.weight[:, 5] /= 60
            layer.self_attn.k_proj.weight[:, 5] /= 60
            layer.self_attn.v_proj.weight[:, 5] /= 60
            layer.mlp.up_proj.weight[9] *= 60
            layer.mlp.down_proj.weight[:, 9] /= 60
    model.save_pretrained(folder)
    return folder


def model_of(source: WeightSource, quant: Quant, *, balanced: bool) -> Llama:
    c = source.config
    turns = c.rope_turns(c.max_len).unsqueeze(1)
    embed, norm, head = (source.get(name) for name in ("embed", "norm", "head"))
    layers = [read_layer(source, i) for i in range(c.layers)]
    if balanced:
        balancer = Balancer(c, embed, turns)
        for layer in layers:
            balancer.balance(layer)
        balancer.balance_head(norm, head)
    packed = tuple(pack_layer(layer, quant) for layer in layers)
    return Llama(c, embed, packed, norm, make_linear(head, quant), turns)


def logits(model: Llama) -> Tensor:
    return Runner(model, 4).logits([ROW])[0]


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_exact_products_stay_what_they_were(kind: str, tmp_path: Path) -> None:
    source = open_weights(outlying(kind, tmp_path))
    plain = model_of(source, "fp32", balanced=False)
    balanced = model_of(source, "fp32", balanced=True)
    assert torch.allclose(logits(plain), logits(balanced), rtol=1e-5, atol=1e-5)
    assert isinstance(balanced.layers[0].down, DenseLinear)
    assert not torch.equal(plain.layers[0].attn_norm, balanced.layers[0].attn_norm)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_rounding_costs_less(kind: str, tmp_path: Path) -> None:
    source = open_weights(outlying(kind, tmp_path))
    exact = logits(model_of(source, "fp32", balanced=False))
    error = {
        balanced: float((logits(model_of(source, "int8", balanced=balanced)) - exact).norm())
        for balanced in (False, True)
    }
    assert error[True] < 0.5 * error[False]


def test_dead_channels_are_left_alone(tmp_path: Path) -> None:
    model: Any = tiny_model.build("llama")
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight[3] = 0.0
        model.model.layers[1].mlp.down_proj.weight[:, 4] = 0.0
        model.model.embed_tokens.weight[:, 7] = 0.0
    model.save_pretrained(tmp_path)
    source = open_weights(tmp_path)
    balanced = model_of(source, "int8", balanced=True)
    assert torch.isfinite(logits(balanced)).all()
    assert torch.isfinite(logits(replace(balanced, turns=balanced.turns[:128]))).all()
