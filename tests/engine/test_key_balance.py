"""Even keys: the same scores, and less lost when keys are rounded to 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.gpu_runner import GpuRunner
from engine.inputs import Row
from engine.models.gpu import GpuLlama
from engine.models.key_balance import BalancedKeys
from engine.models.weights import open_weights
from tests.support import tiny_model

pytestmark = pytest.mark.unit

ROW = Row(tuple(range(60)), 0, (0, 1, 2, 3), None)


def outlying(kind: str, folder: Path) -> Path:
    """A model whose keys have a rotary pair far above the rest, as Qwen's have."""
    model: Any = tiny_model.build(kind)
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            d = attention.head_dim
            for last in (d // 2 - 1, d - 1):
                if kind == "qwen2":
                    attention.k_proj.bias.view(-1, d)[:, last] = 60.0
                elif kind == "qwen3":
                    attention.k_norm.weight[last] *= 60
                    attention.q_norm.weight[last] /= 60
    model.save_pretrained(folder)
    return folder


def logits(folder: Path, *, balanced: bool, int8: bool) -> Tensor:
    model = GpuLlama.load(
        folder, device="cpu", dtype=torch.float32, quant="dense", max_len=64, balanced=balanced
    )
    return GpuRunner(model, 8, max_num_seqs=2, max_num_batched_tokens=64, kv_int8=int8).logits(
        [ROW]
    )[0]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_it_changes_nothing_but_what_rounding_loses(kind: str, tmp_path: Path) -> None:
    folder = outlying(kind, tmp_path)
    want = logits(folder, balanced=False, int8=False)
    same = logits(folder, balanced=True, int8=False)
    assert torch.allclose(same, want, rtol=1e-3, atol=1e-3)
    plain, even = (logits(folder, balanced=b, int8=True) - want for b in (False, True))
    assert even.norm() < 0.7 * plain.norm()


def test_codes_are_scaled_as_weights_are(tmp_path: Path) -> None:
    folder = outlying("qwen2", tmp_path)
    source, even = open_weights(folder), BalancedKeys(open_weights(folder))
    for part, larger in (("q", True), ("k", False)):
        by = even.get(f"0.{part}_bias") / source.get(f"0.{part}_bias")
        assert set(by.tolist()) == {1.0, 8.0 if larger else 1 / 8}  # nearest to 42 ** 0.5
        assert torch.equal(even.get(f"0.{part}"), source.get(f"0.{part}") * by[:, None])
        got, want = even.codes(f"0.{part}"), source.codes(f"0.{part}")
        assert torch.equal(got.codes, want.codes)
        assert torch.equal(got.dense(), want.dense() * by[:, None])
    for name in ("0.v", "0.v_bias", "norm"):
        assert torch.equal(even.get(name), source.get(name))


def test_a_model_that_tells_nothing_of_its_keys_stays_as_it_is(tmp_path: Path) -> None:
    folder = outlying("llama", tmp_path)
    source, even = open_weights(folder), BalancedKeys(open_weights(folder))
    for name in ("0.q", "0.k", "embed"):
        assert torch.equal(even.get(name), source.get(name))
