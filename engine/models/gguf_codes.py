"""The codes of GGUF's quantised blocks, taken as they are (the format's specification).

Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 hold 32 inputs a block. Q4_K and Q5_K hold 8 sub-blocks of 32 whose
6-bit scales and minima are products with the block's; those products round to fp16.
"""

from __future__ import annotations

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from kernels.linear_group.spec import Codes

_Bytes = NDArray[np.uint8]
KINDS = {Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.Q4_K, Kind.Q5_K}
DENSE = {Kind.F32, Kind.F16, Kind.BF16}


def codes(raw: _Bytes, kind: Kind, shape: tuple[int, int]) -> Codes:
    """raw: a tensor's bytes; shape (n_out, n_in); kind: one of KINDS."""
    n_out, n_in = shape
    size = raw.size * (256 if kind in (Kind.Q4_K, Kind.Q5_K) else 32) // (n_out * n_in)
    blocks = raw.reshape(-1, size)
    if kind in (Kind.Q4_K, Kind.Q5_K):
        bits, values, scale, shift = _k_blocks(blocks, kind)
    else:
        bits, values, scale, shift = _blocks(blocks, kind)
    return Codes(
        bits,
        torch.from_numpy(np.ascontiguousarray(values).reshape(n_out, n_in)),
        torch.from_numpy(scale.reshape(n_out, -1)),
        None if shift is None else torch.from_numpy(shift.reshape(n_out, -1)),
    )


_Parts = tuple[int, _Bytes, NDArray[np.float16], NDArray[np.float16] | None]


def _blocks(blocks: _Bytes, kind: Kind) -> _Parts:
    scale = _halves(blocks, 0)
    if kind is Kind.Q8_0:
        return 8, blocks[:, 2:] ^ np.uint8(0x80), scale, None
    shifted = kind in (Kind.Q4_1, Kind.Q5_1)
    at = 4 if shifted else 2
    shift = _halves(blocks, 2) if shifted else None
    if kind in (Kind.Q4_0, Kind.Q4_1):
        return 4, _nibbles(blocks[:, at:]), scale, shift
    fifth = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return 5, _nibbles(blocks[:, at + 4 :]) | (fifth << np.uint8(4)), scale, shift


def _k_blocks(blocks: _Bytes, kind: Kind) -> _Parts:
    six = blocks[:, 4:16]
    low, middle, top = six[:, :4], six[:, 4:8], six[:, 8:]
    bits, values = 4, _k_nibbles(blocks)
    scales = np.concatenate((low & 63, (top & 15) | (low >> 6 << 4)), 1)
    minima = np.concatenate((middle & 63, (top >> 4) | (middle >> 6 << 4)), 1)
    scale = _halves(blocks, 0).astype(np.float32) * scales
    shift = _halves(blocks, 2).astype(np.float32) * -minima.astype(np.float32)
    if kind is Kind.Q5_K:
        planes = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")
        values |= planes.transpose(0, 2, 1).reshape(-1, 256) << 4
        bits = 5
    return bits, values, scale.astype(np.float16), shift.astype(np.float16)


def _k_nibbles(blocks: _Bytes) -> _Bytes:
    """[n, 256]: of every 32 bytes the low halves, then the high ones."""
    packed = blocks[:, -128:].reshape(-1, 4, 1, 32)
    return np.concatenate((packed & 15, packed >> 4), 2).reshape(-1, 256)


def _halves(blocks: _Bytes, at: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _nibbles(packed: _Bytes) -> _Bytes:
    """[n, 16] -> [n, 32]: the low halves, then the high ones."""
    return np.concatenate((packed & 15, packed >> 4), 1)
