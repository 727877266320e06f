"""One ONNX file's graph, read and cut without the `onnx` package.

Only the wire format of protocol buffers is parsed (https://protobuf.dev/programming-guides/encoding);
nodes and weights are kept as the bytes they were, so a sub-graph is written by copying, never by
re-encoding. Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voice_agent.errors import InternalError

# TensorProto.DataType -> numpy
_DTYPES: dict[int, str] = {
    1: "<f4",
    2: "u1",
    3: "i1",
    5: "<i2",
    6: "<i4",
    7: "<i8",
    9: "?",
    10: "<f2",
    11: "<f8",
}
FLOAT = 1


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, integer or bytes) of one message, in file order."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > end:
                raise ValueError("message is cut short")
            yield number, data[at : at + size]
            at += size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield number, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire}")


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(number: int, payload: bytes | memoryview) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(payload)) + bytes(payload)


def _value_info(name: str, rank: int | None) -> bytes:
    """ValueInfoProto of a float tensor; `rank` unknown dimensions, or no shape at all."""
    tensor = _encode_varint(1 << 3) + _encode_varint(FLOAT)
    if rank is not None:
        tensor += _message(2, b"".join(_message(1, b"") for _ in range(rank)))
    return _message(1, name.encode()) + _message(2, _message(1, tensor))


def _text(value: int | memoryview) -> str:
    return bytes(value).decode() if isinstance(value, memoryview) else str(value)


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. constant: the tensor of a Constant node."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    raw: memoryview = field(repr=False)


def _tensor(raw: memoryview) -> tuple[str, NDArray[Any]]:
    """Name and values of a TensorProto (raw_data, or float_data / int64_data / int32_data)."""
    dims: list[int] = []
    dtype, name = 0, ""
    data: bytes | None = None
    loose: list[int] = []
    packed = b""
    for number, value in _fields(raw):
        if number == 1:
            if isinstance(value, int):
                dims.append(value)
            else:
                at = 0
                while at < len(value):
                    dim, at = _varint(value, at)
                    dims.append(dim)
        elif number == 2 and isinstance(value, int):
            dtype = value
        elif number == 8:
            name = _text(value)
        elif number == 9 and isinstance(value, memoryview):
            data = bytes(value)
        elif number == 4 and isinstance(value, memoryview):
            packed += bytes(value)
        elif number in (5, 7):
            if isinstance(value, int):
                loose.append(value)
            else:
                at = 0
                while at < len(value):
                    item, at = _varint(value, at)
                    loose.append(item)
    if dtype not in _DTYPES:
        raise ValueError(f"tensor {name!r} has type {dtype}")
    kind = np.dtype(_DTYPES[dtype])
    if data is not None:
        values = np.frombuffer(data, kind)
    elif packed:
        values = np.frombuffer(packed, kind)
    else:
        wrapped = np.array(loose, np.uint64).astype(np.int64)  # negative varints are 64-bit wraps
        values = wrapped.astype(kind)
    return name, values.reshape(dims)


class OnnxGraph:
    """The nodes and weights of one ONNX file. Raises InternalError when the file is not one."""

    def __init__(self, path: Path) -> None:
        self._data = memoryview(path.read_bytes())
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self._header: list[bytes] = []
        self._weights: dict[str, memoryview] = {}
        self._infos: dict[str, bytes] = {}
        self._name = b"graph"
        try:
            self._parse()
        except (ValueError, IndexError, struct.error) as error:
            raise InternalError(f"{path.name} is not a readable ONNX file: {error}") from error
        if not self.nodes:
            raise InternalError(f"{path.name} holds no ONNX graph")
        self._producer = {out: node for node in self.nodes for out in node.outputs}

    def _parse(self) -> None:
        for number, value in _fields(self._data):
            if number == 7 and isinstance(value, memoryview):
                self._parse_graph(value)
            elif isinstance(value, int):
                self._header.append(_encode_varint(number << 3) + _encode_varint(value))
            elif number != 20:  # training info is of no use here
                self._header.append(_message(number, value))

    def _parse_graph(self, graph: memoryview) -> None:
        for number, value in _fields(graph):
            if not isinstance(value, memoryview):
                continue
            if number == 1:
                self.nodes.append(_node(value))
            elif number == 2:
                self._name = bytes(value)
            elif number == 5:
                self._weights[_name_of(value, 8)] = value
            elif number in (11, 12):
                name = _name_of(value, 1)
                self._infos[name] = bytes(value)
                (self.inputs if number == 11 else self.outputs).append(name)

    def producer(self, name: str) -> Node | None:
        """The node that makes tensor `name`."""
        return self._producer.get(name)

    def weight_names(self) -> list[str]:
        return list(self._weights)

    def weight(self, name: str) -> NDArray[Any]:
        """Values of one initializer. Raises KeyError."""
        return _tensor(self._weights[name])[1]

    def extract(
        self,
        outputs: Sequence[str],
        *,
        inputs: Sequence[str] = (),
        input_rank: int | None = None,
    ) -> bytes:
        """A model that computes `outputs`; `inputs` are tensors to feed (float) in place of their
        nodes, the graph's own inputs are kept as far as they are reached. Raises KeyError for an
        output nobody makes.
        """
        cut = set(inputs)
        wanted: set[int] = set()
        used: set[str] = set()
        stack = list(outputs)
        while stack:
            name = stack.pop()
            if name in cut or name in used:
                continue
            used.add(name)
            node = self._producer.get(name)
            if node is None:
                if name and name not in self._weights and name not in self.inputs:
                    raise KeyError(name)
                continue
            if id(node) not in wanted:
                wanted.add(id(node))
                stack.extend(node.inputs)
        parts = [_message(1, node.raw) for node in self.nodes if id(node) in wanted]
        parts.append(_message(2, self._name))
        parts += [_message(5, raw) for name, raw in self._weights.items() if name in used]
        parts += [_message(11, self._infos[n]) for n in self.inputs if n in used]
        parts += [_message(11, _value_info(n, input_rank)) for n in inputs]
        parts += [_message(12, self._infos.get(n) or _value_info(n, None)) for n in outputs]
        return b"".join(self._header) + _message(7, b"".join(parts))


def _name_of(raw: memoryview, field_number: int) -> str:
    for number, value in _fields(raw):
        if number == field_number:
            return _text(value)
    return ""


def _node(raw: memoryview) -> Node:
    name = op = ""
    inputs: list[str] = []
    outputs: list[str] = []
    for number, value in _fields(raw):
        if number == 1:
            inputs.append(_text(value))
        elif number == 2:
            outputs.append(_text(value))
        elif number == 3:
            name = _text(value)
        elif number == 4:
            op = _text(value)
    return Node(name, op, tuple(inputs), tuple(outputs), raw)
