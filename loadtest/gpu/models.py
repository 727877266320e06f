"""Models of exact shapes with seeded random weights: weights do not travel, and time does not ask.

With random weights a language model says nonsense at the right speed; a voice hums.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.gpu_runner import GpuRunner, block_bytes
from engine.models.config import ModelConfig, RopeScaling
from engine.models.gpu import GpuLlama
from engine.models.gpu_linear import GpuQuant
from loadtest.gpu.bench import Bench
from voice_agent.tts.kokoro_cuda import WIDTHS, FrameGraphs
from voice_agent.tts.kokoro_model import KokoroModel

PHRASES = Path(__file__).parent / "data" / "phrases.json"
FRAMES_AN_ID = 3
"""Of the real voice, on average; random weights would make every phoneme half a second long."""
BLOCK = 16
MAX_LEN = 4096
MEMORY_SHARE = 0.75
"""Of the free memory, for a KV cache."""

LLAMA_8B = ModelConfig(
    architecture="llama", vocab_size=128_256, hidden=4096, layers=32, heads=32, kv_heads=8,
    head_dim=128, intermediate=14336, norm_eps=1e-5, rope_base=500_000.0, max_len=131_072,
    rope_scaling=RopeScaling(8.0, 1.0, 4.0, 8192),
)  # fmt: skip
QWEN_05B = ModelConfig(
    architecture="qwen2", vocab_size=151_936, hidden=896, layers=24, heads=14, kv_heads=2,
    head_dim=64, intermediate=4864, norm_eps=1e-6, rope_base=1_000_000.0, max_len=32_768,
)  # fmt: skip
TINY = ModelConfig(
    architecture="llama", vocab_size=320, hidden=64, layers=2, heads=4, kv_heads=2,
    head_dim=16, intermediate=96, norm_eps=1e-5, rope_base=10_000.0, max_len=4096,
)  # fmt: skip


def llama(bench: Bench, config: ModelConfig, quant: GpuQuant = "dense") -> GpuLlama:
    """On the device, in its dtype; the tiny one in a dry run, whatever was asked for."""
    return GpuLlama.random(
        bench.pick(config, TINY),
        device=bench.device.type,
        dtype=bench.dtype,
        quant=quant,
        seed=bench.seed,
        max_len=MAX_LEN,
    )


def runner(
    bench: Bench, model: GpuLlama, n_blocks: int, *, seqs: int, tokens: int, graphs: bool = True
) -> GpuRunner:
    """n_blocks at most; fewer where the memory has no room for them."""
    if bench.device.type == "cuda":
        free = torch.cuda.mem_get_info(bench.device)[0]
        n_blocks = min(n_blocks, int(free * MEMORY_SHARE) // block_bytes(model, BLOCK) - 1)
    made = GpuRunner(model, n_blocks, BLOCK, max_num_seqs=seqs, max_num_batched_tokens=tokens)
    made.prepare(graphs=graphs)
    return made


@dataclass(frozen=True, slots=True)
class Phrase:
    """ids int64 [1, n] of that many words, on the device."""

    words: int
    ids: Tensor


class RandomVoice:
    """Kokoro from phoneme ids to sound in host memory, as `KokoroTorchVoice` computes it."""

    def __init__(self, bench: Bench, *, graphs: bool = True) -> None:
        body: dict[str, Any] = json.loads(PHRASES.read_text("utf-8"))
        device = bench.device
        torch.manual_seed(bench.seed)
        self.model = KokoroModel().eval().requires_grad_(False)
        last = self.model.predictor.duration_proj.linear_layer
        share = FRAMES_AN_ID / last.out_features
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.constant_(last.bias, math.log(share / (1 - share)))
        self.model.to(device)
        self.style = torch.tensor([body["style"]], device=device)
        self.phrases = [
            Phrase(p["words"], torch.tensor([p["ids"][: bench.pick(None, 4)]], device=device))
            for p in body["phrases"]
        ]
        self.frames: FrameGraphs | None = None
        if device.type == "cuda" and graphs:
            self.frames = FrameGraphs(self.model, WIDTHS)
            self.frames.capture()

    def say(self, ids: Tensor) -> Tensor:
        """Sound fp32 [n] in host memory."""
        with torch.inference_mode():
            if self.frames is None:
                return self._say(ids)
            with torch.cuda.stream(self.frames.stream):
                return self._say(ids)

    def _say(self, ids: Tensor) -> Tensor:
        made = self.model.features(ids, self.style, 1.0)
        second_half = self.frames or self.model.sound
        return second_half(made.rhythm, made.asr, self.style).cpu()
