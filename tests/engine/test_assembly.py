"""Where an engine's model goes, by its config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.assembly import load_runner
from engine.config import EngineConfig
from engine.device import HostDevice
from engine.errors import CapacityError, UsageError
from engine.gpu_runner import GpuRunner, block_bytes, working_bytes
from engine.runner import Runner
from tests.support import tiny_model

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny_model.save("llama", path)
    return path


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": "gpu"}, "device must be one of cpu, cuda"),
        ({"quant": "w4"}, "quant on cpu must be one of auto, native, int8, fp32"),
        ({"quant": "native", "device": "cuda"}, "quant on cuda must be one of auto, bf16"),
        ({"gpu_memory_utilization": 0.5}, "needs device = cuda"),
        ({"kv_cache": "int4"}, "kv_cache must be one of auto, full, int8"),
        ({"kv_cache": "int8", "quant": "fp32"}, "needs quant = native on a CPU"),
        ({"gpu_memory_utilization": 0.99, "device": "cuda"}, r"lie in 0\.\.0\.95"),
    ],
)
def test_what_does_not_fit_the_device_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        EngineConfig(Path("model"), **options)


def test_the_cpu_runs_the_cpus_runner(folder: Path) -> None:
    runner = load_runner(EngineConfig(folder, quant="fp32", kv_bytes=1 << 20))
    assert isinstance(runner, Runner)
    assert not runner.overlaps


@pytest.mark.parametrize("share", [0.0, 0.8])
def test_the_gpu_gets_what_the_config_says(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def load(path: Path, **options: Any) -> str:
        asked.update(options, path=path)
        return "a runner"

    monkeypatch.setattr(GpuRunner, "load", load)
    config = EngineConfig(
        Path("model"), device="cuda", quant="w4", kv_cache="int8", kv_bytes=7 << 20,
        gpu_memory_utilization=share, max_num_seqs=32, max_num_batched_tokens=1024,
        max_model_len=4096,
    )  # fmt: skip
    assert load_runner(config) == "a runner"
    assert asked == {
        "path": Path("model"), "device": "cuda", "quant": "w4", "block_size": 16,
        "kv_bytes": None if share else 7 << 20, "gpu_memory_utilization": share,
        "max_num_seqs": 32, "max_num_batched_tokens": 1024, "max_model_len": 4096,
        "kv_cache": "int8",
    }  # fmt: skip


def test_the_cache_fills_its_share_of_the_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    small = GpuRunner.load(folder, device="cpu", n_blocks=2, quant="fp32", graphs=False)
    block, working = block_bytes(small.model, 16), working_bytes(small.model, 512, 16)
    total = 2 * (working + 11 * block)
    monkeypatch.setattr(HostDevice, "memory", lambda self: (total, total))
    options: dict[str, Any] = {"device": "cpu", "quant": "fp32", "graphs": False}
    runner = GpuRunner.load(folder, gpu_memory_utilization=0.5, **options)
    assert runner.n_blocks == 10  # and the dummy block
    assert runner.kv_bytes_per_block == block
    half = GpuRunner.load(folder, gpu_memory_utilization=0.5, kv_cache="int8", **options)
    assert half.kv_bytes_per_block < 0.4 * block  # of fp32
    assert half.n_blocks == 11 * block // half.kv_bytes_per_block - 1
    with pytest.raises(CapacityError, match="no room for a KV cache"):
        GpuRunner.load(folder, gpu_memory_utilization=0.4, **options)


def test_a_gpu_that_is_too_small_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr("engine.gpu_runner.GpuLlama.load", load)
    with pytest.raises(CapacityError, match=r"take a smaller model.*20\.00 GiB"):
        GpuRunner.load(folder, device="cpu", n_blocks=8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_the_config_says_what_to_do(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"no usable NVIDIA GPU here; use cpu"):
        load_runner(EngineConfig(folder, device="cuda"))
