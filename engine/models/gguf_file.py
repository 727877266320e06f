"""Reads a GGUF file: metadata and tensors (the format's specification, versions 2 and 3).

The `gguf` package supplies the block formats and their dequantisation. The header is parsed here,
because the package's reader spends seconds on a vocabulary of 150,000 words.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from engine.errors import ModelError
from engine.models.gguf_codes import codes
from kernels.linear_group.spec import Codes

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_LIMIT = 1 << 24
"""Most entries of one array or table; more means the file is corrupt."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """shape: rows first (PyTorch's order). offset, n_bytes: in the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    n_bytes: int


class GgufFile:
    """An open GGUF file. `meta` holds scalars, strings and lists. ModelError when unreadable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelError(f"{path} does not exist") from None
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} can't be read: {error}") from None
        self._at = 0
        try:
            self._parse()
        except (struct.error, IndexError, UnicodeDecodeError, KeyError, OverflowError) as error:
            raise ModelError(f"{path} is truncated or corrupt ({error})") from None

    def close(self) -> None:
        """Frees the mapping; tensors read before stay valid."""
        self._map.close()

    def tensor(self, name: str) -> Tensor:
        """The named tensor dequantised: fp32 in its shape. ModelError if absent."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path} has no tensor {name}")
        raw = np.frombuffer(self._map, np.uint8, info.n_bytes, info.offset)
        if info.kind is GGMLQuantizationType.F32:
            return torch.from_numpy(raw.view(np.float32).reshape(info.shape).copy())
        block, size = GGML_QUANT_SIZES[info.kind]
        row_bytes = info.shape[-1] // block * size
        out = np.empty(info.shape, np.float32)
        flat = out.reshape(-1, info.shape[-1])
        source = raw.reshape(-1, row_bytes)
        step = max(1, (4 << 20) // info.shape[-1])
        for first in range(0, len(flat), step):  # in slices: temporary arrays stay small
            part = slice(first, first + step)
            flat[part] = dequantize(source[part], info.kind)
        return torch.from_numpy(out)

    def codes(self, info: TensorInfo) -> Codes:
        """A matrix in groups of 32 inputs, as it is in the file. info.kind: one of KINDS."""
        raw = np.frombuffer(self._map, np.uint8, info.n_bytes, info.offset)
        n_out, n_in = info.shape
        return codes(raw, info.kind, (n_out, n_in))

    def _parse(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ModelError(f"{self.path} is not a GGUF file")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelError(f"{self.path} has GGUF version {version}; 2 and 3 are supported")
        n_tensors, n_meta = self._scalar("Q"), self._scalar("Q")
        if n_tensors > _LIMIT or n_meta > _LIMIT:
            raise ModelError(f"{self.path} is corrupt (impossible header)")
        self.meta: dict[str, Any] = {}
        for _ in range(n_meta):
            key = self._string()
            self.meta[key] = self._value(self._scalar("I"))
        infos = [self._tensor_info() for _ in range(n_tensors)]
        align = int(self.meta.get("general.alignment", 32))
        if align < 1:
            raise ModelError(f"{self.path} is corrupt (alignment {align})")
        base = -(-self._at // align) * align
        self.tensors = {info.name: self._placed(info, base) for info in infos}

    def _placed(self, info: TensorInfo, base: int) -> TensorInfo:
        offset = base + info.offset
        if offset + info.n_bytes > len(self._map):
            raise ModelError(
                f"{self.path} is truncated: tensor {info.name} ends at byte "
                f"{offset + info.n_bytes}, the file at {len(self._map)}"
            )
        return TensorInfo(info.name, info.shape, info.kind, offset, info.n_bytes)

    def _tensor_info(self) -> TensorInfo:
        name = self._string()
        n_dims = self._scalar("I")
        if n_dims > 4:
            raise ModelError(f"{self.path} is corrupt (tensor {name} has {n_dims} dimensions)")
        shape = tuple(self._scalar("Q") for _ in range(n_dims))[::-1] or (1,)
        number = self._scalar("I")
        try:
            kind = GGMLQuantizationType(number)
            block, size = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise ModelError(f"{self.path}: tensor {name} has unknown format {number}") from None
        if shape[-1] % block:
            raise ModelError(f"{self.path} is corrupt (tensor {name} has shape {shape})")
        n_bytes = int(np.prod(shape, dtype=np.float64)) // block * size
        return TensorInfo(name, shape, kind, self._scalar("Q"), n_bytes)

    def _scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._map, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        end = self._at + length
        if end > len(self._map):
            raise IndexError(f"a string ends at byte {end}")
        value = self._map[self._at : end].decode("utf-8")
        self._at = end
        return value

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        item, count = self._scalar("I"), self._scalar("Q")
        if count > _LIMIT:
            raise IndexError(f"an array has {count} entries")
        if item == _STRING:
            return [self._string() for _ in range(count)]
        if item == _ARRAY:
            return [self._value(_ARRAY) for _ in range(count)]
        form = f"<{count}{_SCALARS[item]}"
        values = list(struct.unpack_from(form, self._map, self._at))
        self._at += struct.calcsize(form)
        return values
