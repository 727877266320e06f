"""A real model's own codes in the GPU's form: the CPU's logits, and its answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.gpu_runner import GpuRunner
from engine.inputs import Row
from engine.models.gpu import GpuLlama
from engine.runner import Runner
from engine.text.load import load_text
from tests.support.gpu_rows import generate

pytestmark = pytest.mark.model


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_smollm2_answers(device: str, smollm2_path: Path) -> None:
    tokenizer, chat = load_text(smollm2_path)
    prompt = tuple(chat.user("What is the capital of France?") + chat.assistant_open())
    row = Row(prompt, 0, tuple(range(8)), None)
    judge = Runner.load(smollm2_path, n_blocks=8, quant="fp32", threads=1, max_model_len=128)
    want = judge.logits([row])[0]
    del judge
    model = GpuLlama.load(smollm2_path, device=device, dtype=torch.float32, quant="w8", max_len=128)
    runner = GpuRunner(model, 9, max_num_seqs=1, max_num_batched_tokens=64)
    got = runner.logits([row])[0]
    tolerance = 1e-3 if device == "cpu" else 1e-2
    assert torch.allclose(got, want, rtol=tolerance, atol=tolerance)
    answer = tokenizer.decode(generate(runner, [prompt], 8, ahead=True)[0])
    assert answer.startswith("The capital of France is Paris.")
