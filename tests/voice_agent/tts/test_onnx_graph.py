"""Reading and cutting ONNX files: a small graph written by hand, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from voice_agent.errors import InternalError
from voice_agent.tts.onnx_graph import OnnxGraph

pytestmark = pytest.mark.unit


def field(number: int, payload: bytes | str | int) -> bytes:
    if isinstance(payload, int):
        return bytes([number << 3]) + varint(payload)
    data = payload.encode() if isinstance(payload, str) else payload
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def node(op: str, name: str, inputs: list[str], outputs: list[str]) -> bytes:
    parts = [field(1, i) for i in inputs] + [field(2, o) for o in outputs]
    return b"".join([*parts, field(3, name), field(4, op)])


def info(name: str) -> bytes:
    dim = field(1, field(2, "n"))
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, dim)))


def tensor(name: str, values: list[float]) -> bytes:
    data = np.array(values, "<f4").tobytes()
    return field(1, len(values)) + field(2, 1) + field(8, name) + field(9, data)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """out = (x + w) * w, through a middle tensor m."""
    graph = b"".join(
        [
            field(1, node("Add", "/first", ["x", "w"], ["m"])),
            field(1, node("Mul", "/second", ["m", "w"], ["out"])),
            field(2, "g"),
            field(5, tensor("w", [2.0])),
            field(5, tensor("unused", [1.0, 2.0, 3.0])),
            field(11, info("x")),
            field(12, info("out")),
        ]
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(field(1, 8) + field(7, graph) + field(8, field(2, 13)))
    return path


def run(data: bytes, **feed: list[float]) -> list[np.ndarray]:
    session = ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {k: np.array(v, np.float32) for k, v in feed.items()})


def test_reads_nodes_and_weights(model: Path) -> None:
    graph = OnnxGraph(model)
    assert [n.op for n in graph.nodes] == ["Add", "Mul"]
    assert graph.inputs == ["x"]
    assert graph.outputs == ["out"]
    assert graph.weight("w").tolist() == [2.0]
    producer = graph.producer("m")
    assert producer is not None
    assert producer.name == "/first"
    assert graph.producer("x") is None


def test_exposes_a_middle_tensor(model: Path) -> None:
    middle, out = run(OnnxGraph(model).extract(["m", "out"]), x=[1.0, 5.0])
    assert middle.tolist() == [3.0, 7.0]
    assert out.tolist() == [6.0, 14.0]


def test_cuts_in_two_halves_that_make_the_whole(model: Path) -> None:
    graph = OnnxGraph(model)
    (middle,) = run(graph.extract(["m"]), x=[1.0])
    (out,) = run(graph.extract(["out"], inputs=["m"], input_rank=1), m=middle.tolist())
    assert out.tolist() == [6.0]


def test_unknown_output(model: Path) -> None:
    with pytest.raises(KeyError):
        OnnxGraph(model).extract(["nowhere"])


@pytest.mark.parametrize("keep", [0, 1, 7, 40])
def test_damaged_file_is_an_error(model: Path, keep: int) -> None:
    model.write_bytes(model.read_bytes()[:keep])
    with pytest.raises(InternalError, match=r"m\.onnx"):
        OnnxGraph(model)
    model.write_bytes(b"<!doctype html> not a model")
    with pytest.raises(InternalError):
        OnnxGraph(model)
