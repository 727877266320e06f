"""Model files: formats, layouts, and every way of being broken."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from engine.errors import ModelError
from engine.inputs import Row
from engine.models.gguf_file import GgufFile
from engine.models.weights import halve, interleave, open_weights
from engine.runner import Runner
from tests.support import gguf_writer, native, tiny_model

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    gguf_writer.write(tiny_model.build("llama"), path, arch="llama")
    return path


@pytest.mark.parametrize(
    ("kind", "arch"),
    [("llama", "llama"), ("qwen2", "qwen2"), ("qwen2-tied", "qwen2"), ("qwen3", "qwen3")],
)
def test_gguf_and_safetensors_give_the_same_logits(kind: str, arch: str, tmp_path: Path) -> None:
    model = tiny_model.save(kind, tmp_path / "folder")
    gguf_writer.write(model, tmp_path / "model.gguf", arch=arch)
    row = Row(tuple(range(20)), 0, (0, 1), None)
    native.library()
    for quant in ("fp32", "native"):
        both = [
            Runner.load(path, n_blocks=2, quant=quant).logits([row])
            for path in (tmp_path / "folder", tmp_path / "model.gguf")
        ]
        assert torch.allclose(both[0], both[1], rtol=1e-5, atol=1e-5), quant


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.BF16]
)
def test_block_formats(kind: Kind, tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(33, 256)).astype(np.float32)
    packed = quantize(data, kind)
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("t", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "x.gguf")
    got = file.tensor("t")
    file.close()
    assert got.shape == (33, 256)
    assert np.array_equal(got.numpy(), dequantize(packed, kind))
    assert np.abs(got.numpy() - data).max() < 0.5


def test_metadata_of_every_type(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_string("a.text", "naïve 🙂")
    writer.add_uint32("a.u32", 7)
    writer.add_int64("a.i64", -(2**40))
    writer.add_float32("a.f32", 0.5)
    writer.add_bool("a.yes", True)
    writer.add_array("a.words", ["x", "", "é"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "x.gguf")
    meta = file.meta
    file.close()
    assert meta["a.text"] == "naïve 🙂"
    assert (meta["a.u32"], meta["a.i64"], meta["a.f32"], meta["a.yes"]) == (7, -(2**40), 0.5, True)
    assert (meta["a.words"], meta["a.numbers"]) == (["x", "", "é"], [1, 2, 3])


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.01, 0.3, 0.9, 0.999])
def test_a_truncated_gguf_is_refused(gguf: Path, tmp_path: Path, share: float) -> None:
    data = gguf.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ModelError, match=r"truncated|corrupt|read|not a GGUF"):
        Runner.load(cut, n_blocks=2)


def test_flipped_header_bytes_never_crash(gguf: Path, tmp_path: Path) -> None:
    """Each damaged header still parses or is a ModelError; nothing else, and no huge read."""
    data = gguf.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(150):
        bad = bytearray(data)
        for at in rng.integers(4, 1500, 3):
            bad[at] = int(rng.integers(256))
        path = tmp_path / "bad.gguf"
        path.write_bytes(bytes(bad))
        with contextlib.suppress(ModelError):
            open_weights(path).close()


def test_not_a_gguf_and_not_there(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelError, match="not a GGUF"):
        open_weights(tmp_path / "x.gguf")
    with pytest.raises(ModelError, match="does not exist"):
        open_weights(tmp_path / "y.gguf")


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    model = tiny_model.build("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    gguf_writer.write(model, tmp_path / "x.gguf", arch="llama")
    with pytest.raises(ModelError, match=r"1\.up holds numbers that are not finite"):
        Runner.load(tmp_path / "x.gguf", n_blocks=2)


def test_broken_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        open_weights(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="can't be read"):
        open_weights(tmp_path)
    tiny_model.save("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match="truncated or corrupt"):
        open_weights(tmp_path)
    file.unlink()
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        open_weights(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    tiny_model.save("llama", tmp_path)
    spec = json.loads((tmp_path / "config.json").read_text())
    spec["num_hidden_layers"] = 4
    (tmp_path / "config.json").write_text(json.dumps(spec))
    with pytest.raises(ModelError, match=r"no tensor model\.layers\.3"):
        Runner.load(tmp_path, n_blocks=2)


def test_interleave_pairs_and_its_inverse() -> None:
    rows = torch.arange(12.0)  # two heads of six rows
    assert interleave(rows, 2).tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    weight = torch.randn(12, 5)
    assert torch.equal(halve(interleave(weight, 2), 2), weight)
