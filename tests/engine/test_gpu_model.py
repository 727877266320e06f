"""Weights of a GPU's model in every form, against the CPU's in fp32 on the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind

from engine.errors import ModelError
from engine.gpu_runner import GpuRunner, block_bytes, working_bytes
from engine.inputs import Row
from engine.models.config import ModelConfig
from engine.models.gpu import GpuLlama
from engine.models.gpu_linear import CodesProjection, GpuQuant
from engine.runner import Runner
from kernels import cuda_build, resolve, tuning
from kernels.linear_group import cuda as linear_cuda
from kernels.linear_group.gpu import pack
from kernels.linear_group.spec import REL_ERROR, Codes, quantise
from tests.support import gguf_writer, tiny_model
from tests.support.cuda import ON, kernels
from tests.support.gpu_rows import ids, table

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROW = Row(ids(50), 0, table(50, 0), None)


def logits(model: GpuLlama) -> torch.Tensor:
    return GpuRunner(model, 8, max_num_seqs=2, max_num_batched_tokens=64).logits([ROW])[0]


def load(
    path: Path, quant: GpuQuant, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> GpuLlama:
    torch.set_num_threads(1)
    return GpuLlama.load(path, device=device, dtype=dtype, quant=quant, max_len=64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("arch", "kind", "quant"),
    [
        ("llama", Kind.F16, "dense"),
        ("llama", Kind.Q8_0, "w8"),
        ("llama", Kind.Q4_0, "w4"),
        ("qwen2", Kind.Q5_1, "w4"),
        ("qwen3", Kind.Q8_0, "w4"),
    ],
)
def test_a_files_own_codes_are_kept(
    arch: str, kind: Kind, quant: GpuQuant, device: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    gguf_writer.write(tiny_model.build(arch), path, arch=arch, kind=kind)
    want = Runner.load(path, n_blocks=8, quant="fp32", threads=1).logits([ROW])[0]
    tolerance = 2e-4 if device == "cpu" else 2e-3
    got = logits(load(path, quant, device))
    assert torch.allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("quant", ["w8", "w4"])
def test_half_precision_is_rounded_to_codes(quant: GpuQuant, device: str, tmp_path: Path) -> None:
    """The same as a model whose weights were rounded before; the head keeps 8 bits."""
    model = tiny_model.save("qwen2", tmp_path)
    with torch.inference_mode():
        for name, weight in model.named_parameters():
            if name.endswith("proj.weight") or name == "lm_head.weight":
                bits = 4 if quant == "w4" and name != "lm_head.weight" else 8
                weight.copy_(quantise(weight, bits).dense())
        want = model(torch.tensor([ROW.token_ids])).logits[0, -1]
    tolerance = 2e-4 if device == "cpu" else 2e-3
    got = logits(load(tmp_path, quant, device))
    assert torch.allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_loses_as_much_as_pytorch(
    dtype: torch.dtype, device: str, tmp_path: Path
) -> None:
    """Error against fp32 at most twice that of `transformers` in the same precision."""
    model = tiny_model.save("llama", tmp_path)
    ask = torch.tensor([ROW.token_ids])
    with torch.inference_mode():
        exact = model(ask).logits[0, -1]
        plain = model.to(dtype)(ask).logits[0, -1].float()
    got = logits(load(tmp_path, "dense", device, dtype))
    assert (got - exact).norm() < 2 * (plain - exact).norm()


def test_codes_take_less_memory(tmp_path: Path) -> None:
    tiny_model.save("llama", tmp_path)
    dense, w8, w4 = (load(tmp_path, quant, dtype=torch.bfloat16).weight_bytes
                     for quant in ("dense", "w8", "w4"))  # fmt: skip
    assert 0.5 < w8 / dense < 0.6
    assert w4 < 0.7 * w8  # the head keeps 8 bits


@pytest.mark.parametrize("device", DEVICES)
def test_parts_of_several_formats_are_one_product(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [quantise(torch.randn(n, 64, generator=generator), bits)
             for n, bits in ((48, 4), (16, 8), (16, 5))]  # fmt: skip
    shifted = replace(parts[0], shift=parts[0].scale * -3)
    codes: list[Codes] = [*parts, shifted]
    bias = torch.randn(128, generator=generator)
    x = torch.randn(3, 64, generator=generator)
    made = CodesProjection([pack(part, device) for part in codes], bias.to(device))
    want = x @ torch.cat([part.dense() for part in codes]).T + bias
    got = made(x.to(device))
    assert torch.allclose(got.cpu(), want, rtol=1e-4, atol=1e-2)
    out = torch.empty(3, 128, device=device)
    made.into(out, x.to(device))
    assert torch.equal(out, got)


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a process that has chosen nothing, with this folder's tuning files."""
    caches = (tuning._implementations, resolve._module)
    monkeypatch.setattr(tuning, "_HERE", tmp_path)
    monkeypatch.setattr(resolve, "_chosen", {})
    for cached in caches:
        cached.cache_clear()
    yield tmp_path
    for cached in caches:
        cached.cache_clear()


@pytest.mark.parametrize("on", ON)
def test_few_rows_are_multiplied_by_what_won(
    on: str, monkeypatch: pytest.MonkeyPatch, afresh: Path
) -> None:
    """A tuning file that names CUDA C++ for up to 16 rows of 4 bits, and weights of two formats."""
    made = kernels(on)
    device = "cpu" if on == "emulated" else "cuda"
    file = afresh / f"{tuning.arch(torch.device(device))}.json"
    file.write_text('{"implementations": {"linear_group w4x16": "cuda"}}', "utf-8")
    named = resolve._CANDIDATES["linear_group"]
    on_cpu = ("cuda", lambda d, shape: tuning.implementation("linear_group", CPU, shape) == "cuda")
    if on == "emulated":
        monkeypatch.setitem(resolve._CANDIDATES, "linear_group", (on_cpu, *named[1:]))
    monkeypatch.setattr(cuda_build, "library", lambda: made)
    generator = torch.Generator().manual_seed(0)
    parts = [quantise(torch.randn(48, 64, generator=generator), bits) for bits in (4, 8)]
    bias = torch.randn(96, generator=generator).half()
    projection = CodesProjection([pack(part, device) for part in parts], bias.to(device))
    dense = torch.cat([part.dense() for part in parts])
    launched: list[int] = []
    real = linear_cuda.linear_group

    def counted(x: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        launched.append(x.shape[0])
        return real(x, *given, **named)

    monkeypatch.setattr(linear_cuda, "linear_group", counted)
    for n in (0, 1, 16, 17, 33):
        x = torch.randn(n, 64, generator=generator).half()
        want = x.float() @ dense.T + bias.float()
        got = projection(x.to(device)).cpu().float()
        assert (got - want).norm() <= REL_ERROR * want.norm()
    assert launched == [1, 16]
    places = {what: name for (what, _), name in resolve.chosen().items() if " w" in what}
    assert places["linear_group w4x16"] == "cuda"
    others = {name for what, name in places.items() if what != "linear_group w4x16"}
    assert others
    assert "cuda" not in others


def test_a_shape_without_groups_is_refused(tmp_path: Path) -> None:
    config = replace(TINY, intermediate=40)
    with pytest.raises(ModelError, match="multiple of 32"):
        GpuLlama.random(config, device="cpu", dtype=torch.float32, quant="w8", max_len=16)


TINY = ModelConfig("qwen2", 100, 64, 2, 4, 2, 16, 96, 1e-6, 10_000.0, 128)


@pytest.mark.parametrize("quant", ["dense", "w8", "w4"])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_random_weights_keep_numbers_in_range(arch: str, quant: GpuQuant) -> None:
    config = replace(TINY, architecture=arch)
    model = GpuLlama.random(config, device="cpu", dtype=torch.float32, quant=quant, max_len=64)
    assert (model.max_len, len(model.layers)) == (64, 2)
    assert 0.1 < logits(model).std() < 10


def test_sizes_follow_the_shape() -> None:
    model = GpuLlama.random(TINY, device="cpu", dtype=torch.bfloat16, max_len=64)
    assert block_bytes(model, 16) == 2 * 2 * 2 * 2 * 16 * 16
    for n_blocks, width in ((3, 3), (40, 4)):  # a table holds no more than there is
        assert GpuRunner(model, n_blocks)._decode.fields.tables.shape == (16, width)
    small, large = (working_bytes(model, n, 8) for n in (64, 512))
    assert large - small == 2 * 2 * (512 - 64) * (8 * 16 + 4 * 64 + 3 * 96)
