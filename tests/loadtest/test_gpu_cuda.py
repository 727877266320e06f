"""The CUDA kernels' phase of the GPU script, on the emulated kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels import cuda_build, tuning
from kernels.linear_group import cuda as linear_cuda
from loadtest.gpu import cuda
from loadtest.gpu.bench import Bench, Json, Skipped
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
    assert [row["decides"] for row in found["rows"]] == [ATTENTION, FEW]
    assert all(row["us"] > 0 and row["beside_us"] > 0 for row in found["rows"])


def test_a_wrong_kernel_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = linear_cuda.linear_group
    monkeypatch.setattr(linear_cuda, "linear_group", lambda **x: right(**x).mul_(1.02))
    assert cuda.contest(bench)["wrong"] == ["linear_group w4 2 x 64 -> 96"]


ATTENTION, FEW, MORE = "paged_attention_decode", "linear_group w4x16", "linear_group w4x32"


def told(*shares: float, ok: bool = True, left_out: str = "", of: str = ATTENTION) -> Json:
    """A result in which CUDA C++ took these shares of Triton's time. left_out: what was not all
    measured."""
    rows = [{"decides": of, "us": 100 * share, "beside_us": 100, "ok": ok} for share in shares]
    return {"rows": rows, "left_out": [{"decides": left_out}] if left_out else []}


def test_cuda_is_chosen_where_it_is_right_and_faster() -> None:
    assert cuda.choice(ATTENTION, told(0.9, 1.0)) == "cuda"
    assert cuda.choice(ATTENTION, told(0.99, 0.98)) is None
    assert cuda.choice(ATTENTION, told(0.5, 0.5, 1.2)) is None
    assert cuda.choice(ATTENTION, told(0.5, ok=False)) is None
    assert cuda.choice(ATTENTION, told(0.5, left_out=ATTENTION)) is None
    assert cuda.choice(ATTENTION, told(0.5, left_out=FEW)) == "cuda"


def test_a_class_of_products_must_gain_what_its_memory_costs() -> None:
    assert cuda.choice(FEW, told(0.8, 1.0, of=FEW)) == "cuda"
    assert cuda.choice(FEW, told(0.9, 1.0, of=FEW)) is None
    assert cuda.choice(MORE, told(0.5, of=FEW)) is None
    assert cuda.choice("linear_group w5x32", told(0.5, of="linear_group w5x32")) == "cuda"


def test_the_choice_is_written_over_an_older_one_beside_the_swept_values(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = bench.out / "cpu.json"
    file.write_text('{"other": {"all": {"A": 1}}, "implementations": {"x": "cuda"}}', "utf-8")
    for name in ("cuda", None):
        chosen = {ATTENTION: name, MORE: name}
        monkeypatch.setattr(cuda, "choice", lambda what, result, c=chosen: c.get(what))
        assert cuda.contest(bench)["implementations"] == {**dict.fromkeys(cuda.GAIN), **chosen}
        named = {"x": "cuda", **(dict.fromkeys(chosen, name) if name else {})}
        assert tuning.read_implementations(file) == named
        assert tuning.read(file) == {"other": {"all": {"A": 1}}}


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
