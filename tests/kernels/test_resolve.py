"""Which implementation is taken, that it is told, and what is said where Triton can't be used."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels import resolve as module
from kernels.linear_group import cuda as linear_cuda
from kernels.paged_attention_decode import cuda as decode_cuda
from kernels.resolve import chosen, module_for, operations, resolve
from kernels.silu_mul import reference

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has resolved nothing yet."""
    monkeypatch.setattr(module, "_chosen", {})
    for cached in (module._module, module._no_triton):
        cached.cache_clear()
    yield
    for cached in (module._module, module._no_triton):
        cached.cache_clear()


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda asked: None if asked == name else found(asked)
    )


def test_a_gpu_gets_triton_and_a_processor_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="NOT RUN: needs triton")
    monkeypatch.setenv("CC", "cc")
    assert resolve("silu_mul", torch.device("cuda", 1)) is not reference.silu_mul
    assert resolve("silu_mul", "cpu") is reference.silu_mul
    assert chosen() == {("silu_mul", "cuda"): "triton", ("silu_mul", "cpu"): "reference"}


@pytest.mark.parametrize("op", operations())
def test_a_gpu_without_triton_is_served_by_pytorch(
    op: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without(monkeypatch, "triton")
    with caplog.at_level(logging.INFO, module.log.name):
        assert callable(resolve(op, "cuda"))
        resolve("rms_norm", "cuda")
    assert chosen()[op, "cuda"] == "reference"
    assert f"kernel {op} on cuda: reference" in caplog.messages
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "triton is not installed" in told[0]


def test_triton_needs_a_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton", reason="NOT RUN: needs triton")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert resolve("silu_mul", "cuda") is reference.silu_mul
    assert "install gcc" in caplog.text


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU whose tuning file prefers CUDA C++ for decode attention."""
    pytest.importorskip("triton", reason="NOT RUN: needs triton")
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        module.tuning,
        "implementation",
        lambda op, device, shape="": "cuda" if op == "paged_attention_decode" else None,
    )


def test_cuda_is_taken_where_it_was_measured_to_win(
    measured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.cuda_build, "library", lambda: None)
    half = {"dtype": torch.bfloat16, "head_dim": 128}
    assert module_for("paged_attention_decode", "cuda", **half) is decode_cuda
    assert chosen()["paged_attention_decode", "cuda"] == "cuda"
    assert resolve("silu_mul", "cuda") is not reference.silu_mul
    assert chosen()["silu_mul", "cuda"] == "triton"


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 128), (torch.float16, 256)])
def test_what_cuda_does_not_take_is_tritons(
    measured: None, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, head_dim: int
) -> None:
    monkeypatch.setattr(module.cuda_build, "library", lambda: None)
    module_for("paged_attention_decode", "cuda", dtype=dtype, head_dim=head_dim)
    assert chosen()["paged_attention_decode", "cuda"] == "triton"


def test_a_cache_of_8_bits_is_tritons(
    measured: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module.cuda_build, "library", lambda: None)
    half = {"dtype": torch.bfloat16, "head_dim": 128, "kv_int8": True}
    with caplog.at_level(logging.INFO, module.log.name):
        assert module_for("paged_attention_decode", "cuda", **half) is not decode_cuda
    assert chosen()["paged_attention_decode", "cuda"] == "triton"
    assert "cuda does not take dtype torch.bfloat16, head_dim 128, kv_int8 True" in caplog.text
    empty = torch.empty(0)
    with pytest.raises(ValueError, match="Triton's take it"):
        decode_cuda.paged_attention_decode(empty, empty, empty, empty, scale=1.0, scales=empty)


def test_cuda_that_cannot_be_built_is_told_of(
    measured: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise module.cuda_build.CudaUnavailable("no nvcc found")

    monkeypatch.setattr(module.cuda_build, "library", fail)
    resolve("paged_attention_decode", "cuda")
    assert chosen()["paged_attention_decode", "cuda"] == "triton"
    assert "no nvcc found" in caplog.text


def test_nothing_measured_is_tritons(measured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.tuning, "implementation", lambda *_: None)
    resolve("paged_attention_decode", "cuda")
    assert chosen()["paged_attention_decode", "cuda"] == "triton"


def test_a_tuning_file_chooses_a_product_for_each_class_of_shapes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="NOT RUN: needs triton")
    named = {"linear_group w4x16": "cuda", "linear_group w8x32": "cuda"}
    (tmp_path / "sm_90.json").write_text(json.dumps({"implementations": named}), "utf-8")
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(module.tuning, "_HERE", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(module.cuda_build, "library", lambda: None)
    with caplog.at_level(logging.INFO, module.log.name):
        for bits, shifted in ((4, True), (8, False)):
            for rows in (16, 32, 64):
                shape = f"w{bits}x{rows}"
                found = module_for("linear_group", "cuda", shape, bits=bits, shifted=shifted)
                wins = module.tuning.place("linear_group", shape) in named
                assert (found is linear_cuda) is wins
                assert chosen()[module.tuning.place("linear_group", shape), "cuda"] == (
                    "cuda" if wins else "triton"
                )
        module_for("linear_group", "cuda", "w8x32", bits=8, shifted=True)
        resolve("linear_group", "cuda")
    assert "kernel linear_group w4x16 on cuda: cuda" in caplog.messages
    assert "kernel linear_group w4x32 on cuda: triton" in caplog.messages
    assert "linear_group w8x32 on cuda: cuda does not take bits 8, shifted True" in caplog.text
    assert chosen()["linear_group w8x32", "cuda"] == "triton"
    assert chosen()["linear_group", "cuda"] == "triton"
