"""Kokoro on a GPU: recorded, padded widths sound like the CPU's exact ones."""

from __future__ import annotations

import pytest
import torch

from voice_agent.tts.kokoro_cuda import FrameGraphs
from voice_agent.tts.kokoro_model import STYLE, KokoroModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU"),
]


def test_graphs_on_a_gpu_sound_like_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(1)
    model = KokoroModel().eval().requires_grad_(False)
    ids, style = torch.tensor([[0, 50, 83, 54, 0]]), 0.3 * torch.randn(1, 2 * STYLE)
    with torch.inference_mode():
        made = model.features(ids, style, 8.0)
        frames = made.asr.shape[2]
        exact = model.sound(made.rhythm, made.asr, style)
        model.to("cuda")
        there = model.features(ids.cuda(), style.cuda(), 8.0)
        assert there.durations.tolist() == made.durations.tolist()
        graphs = FrameGraphs(model, (frames + 5, 2 * frames))
        graphs.capture()
        with torch.cuda.stream(graphs.stream):
            for _ in range(2):
                sound = graphs(there.rhythm, there.asr, style.cuda()).cpu()
    assert sound.shape == exact.shape
    assert (sound - exact).abs().max() < 0.05 * exact.abs().max()
