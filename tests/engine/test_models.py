"""The forward pass against `transformers` on the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.errors import ModelError
from engine.inputs import Row
from engine.models.config import from_gguf, from_hf
from engine.models.layers import Quant
from engine.runner import Runner
from tests.support import native, tiny_model

pytestmark = pytest.mark.unit


def row(ids: list[int], start: int = 0, first_block: int = 0) -> Row:
    n = -(-(start + len(ids)) // 16)
    return Row(tuple(ids), start, tuple(range(first_block, first_block + n)), None)


def random_ids(n: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, tiny_model.VOCAB, (n,), generator=generator).tolist()


def judge(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("kind", tiny_model.KINDS)
def test_logits_match_transformers_fp32(kind: str, tmp_path: Path) -> None:
    model = tiny_model.save(kind, tmp_path)
    runner = Runner.load(tmp_path, n_blocks=32, quant="fp32")
    ids = random_ids(200)
    want = judge(model, ids)
    for n in (1, 2, 15, 16, 17, 128, 129, 200):
        got = runner.logits([row(ids[:n])])[0]
        assert torch.allclose(got, want[n - 1], rtol=2e-4, atol=2e-4), n


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral-window"])
def test_token_by_token_matches_transformers(kind: str, tmp_path: Path) -> None:
    model = tiny_model.save(kind, tmp_path)
    runner = Runner.load(tmp_path, n_blocks=32, quant="fp32")
    ids = random_ids(40)
    want = judge(model, ids)
    for i, token in enumerate(ids):
        got = runner.logits([row([token], start=i)])[0]
        assert torch.allclose(got, want[i], rtol=2e-4, atol=2e-4), i


@pytest.mark.parametrize("quant", ["int8", "native"])
@pytest.mark.parametrize("kind", tiny_model.KINDS)
def test_8_bits_stay_close(kind: str, quant: Quant, tmp_path: Path) -> None:
    """Two 8-bit roundings per product: the logits keep a cosine of 0.99 with the exact ones."""
    if quant == "native":
        native.library()
    model = tiny_model.save(kind, tmp_path)
    runner = Runner.load(tmp_path, n_blocks=32, quant=quant)
    ids = random_ids(60)
    got, want = runner.logits([row(ids)])[0], judge(model, ids)[-1]
    assert torch.nn.functional.cosine_similarity(got, want, 0) > 0.99


def test_sharded_folder(tmp_path: Path) -> None:
    model = tiny_model.build("qwen2")
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    runner = Runner.load(tmp_path, n_blocks=4, quant="fp32")
    ids = random_ids(9)
    assert torch.allclose(runner.logits([row(ids)])[0], judge(model, ids)[-1], rtol=2e-4, atol=2e-4)


def config(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8,
    }  # fmt: skip
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gemma3"}, "architecture 'gemma3' is not supported"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"num_attention_heads": 0}, "impossible"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "can't share"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "rope scaling 'yarn'"),
        ({"model_type": "mistral", "sliding_window": -4}, "window is -4"),
        (
            {
                "model_type": "qwen2",
                "num_hidden_layers": 3,
                "use_sliding_window": True,
                "sliding_window": 4,
                "max_window_layers": 2,
            },
            "in some layers only",
        ),
    ],
)
def test_impossible_configs_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        from_hf(config(**changes))


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 4}, 4),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "llama", "sliding_window": 4}, 0),
        ({"model_type": "qwen2", "sliding_window": 4, "use_sliding_window": False}, 0),
        ({"model_type": "qwen2", "sliding_window": 4, "use_sliding_window": True}, 4),
        (
            {"model_type": "qwen2", "sliding_window": 4, "use_sliding_window": True,
             "max_window_layers": 1},
            0,
        ),
        (
            {"model_type": "qwen3", "sliding_window": 4, "use_sliding_window": True,
             "layer_types": ["sliding_attention"]},
            4,
        ),
    ],
)  # fmt: skip
def test_one_window_for_all_layers_or_none(changes: dict[str, Any], window: int) -> None:
    assert from_hf(config(**changes)).window == window


def test_gguf_config_names_what_is_missing() -> None:
    with pytest.raises(ModelError, match=r"llama\.attention\.head_count"):
        from_gguf({"general.architecture": "llama"}, 10)


def test_longer_than_the_model_is_refused(tmp_path: Path) -> None:
    tiny_model.save("llama", tmp_path)
    with pytest.raises(ModelError, match="at most 512"):
        Runner.load(tmp_path, n_blocks=4, max_model_len=513)


def test_a_missing_number_in_a_saved_config(tmp_path: Path) -> None:
    tiny_model.save("llama", tmp_path)
    spec = json.loads((tmp_path / "config.json").read_text())
    spec["intermediate_size"] = 81
    (tmp_path / "config.json").write_text(json.dumps(spec))
    with pytest.raises(ModelError, match=r"shape .* expected"):
        Runner.load(tmp_path, n_blocks=4)
