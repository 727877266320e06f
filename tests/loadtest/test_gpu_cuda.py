"""The CUDA kernels' phase of the GPU script, on the emulated kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels import cuda_build
from kernels.linear_group import cuda as linear_cuda
from loadtest.gpu import cuda
from loadtest.gpu.bench import Bench, Skipped
from tests.support.cuda import kernels

pytestmark = pytest.mark.unit


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    kernels("emulated")
    made = Bench(torch.device("cpu"), True, tmp_path, ceilings={"copy_gb_s": 10.0})
    yield made
    made.tuned.close()


def test_every_operation_is_compared_and_timed(bench: Bench) -> None:
    found = cuda.contest(bench)
    assert found["wrong"] == found["left_out"] == []
    assert [row["what"].split()[0] for row in found["rows"]] == [
        "paged_attention_decode", "linear_group",
    ]  # fmt: skip
    assert all(row["us"] > 0 and row["beside_us"] > 0 for row in found["rows"])


def test_a_wrong_kernel_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = linear_cuda.linear_group
    monkeypatch.setattr(linear_cuda, "linear_group", lambda **x: right(**x).mul_(1.02))
    assert cuda.contest(bench)["wrong"] == ["linear_group w4 2 x 64 -> 96"]


def test_in_a_process_of_its_own(bench: Bench) -> None:
    """As on a GPU."""
    bench.until_s = time.monotonic() + 600.0
    found = cuda.apart(bench)
    assert found["wrong"] == []
    assert len(found["rows"]) == 2


def test_a_process_that_breaks_is_told_of(bench: Bench) -> None:
    bench.until_s = time.monotonic() + 600.0
    bench.ceilings = {}
    with pytest.raises(RuntimeError, match=r"(?s)ended with 1: .*KeyError"):
        cuda.apart(bench)


def test_without_a_compiler_it_is_skipped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise cuda_build.CudaUnavailable("no nvcc found")

    monkeypatch.setattr(cuda_build, "emulated", fail)
    with pytest.raises(Skipped, match="no nvcc"):
        cuda.contest(bench)
