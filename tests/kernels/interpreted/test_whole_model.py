"""The engine's GPU step with every operation on Triton's kernels, judged by `transformers`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.gpu_runner import GpuRunner
from engine.inputs import Row
from kernels import resolve
from tests.support import tiny_model

pytestmark = pytest.mark.interp


def test_a_prompt_then_tokens_with_a_sliding_window(tmp_path: Path) -> None:
    model = tiny_model.save("mistral-window", tmp_path)
    runner = GpuRunner.load(
        tmp_path, device="cpu", quant="fp32", n_blocks=6,
        max_model_len=32, max_num_seqs=1, max_num_batched_tokens=32,
    )  # fmt: skip
    ids = tuple((7 * i + 3) % tiny_model.VOCAB for i in range(30))
    with torch.inference_mode():
        want = model(torch.tensor([ids])).logits[0]
    got = [runner.logits([Row(ids[:28], 0, (4, 1), None)])[0]]
    got += [runner.logits([Row(ids[at : at + 1], at, (4, 1), None)])[0] for at in (28, 29)]
    assert torch.allclose(torch.stack(got), want[27:], rtol=2e-4, atol=2e-4)
    for op in (
        "kv_write",
        "paged_attention_decode",
        "paged_attention_prefill",
        "rms_norm",
        "rope_at",
    ):
        assert resolve.chosen()[op, "cpu"] == "triton", op
