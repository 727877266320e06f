"""linear_group on an NVIDIA GPU in CUDA C++: 1 to 32 rows on the tensor cores' byte products.

The weight is packed in the order in which a warp's lanes want it, so that each lane's 16-byte load
holds its own operands and nothing is shuffled. With row = lane / 4 and quad = lane % 4, two groups
of 32 inputs of a tile of 16 outputs are, one after the other:

    codes   4, 5 bits: 32 lanes x 16 bytes. Word 2 q + h of a lane: group q, output row + 8 h; byte
            k holds input 4 quad + k below and input 16 + 4 quad + k above
            8 bits: for each group 32 lanes x 16 bytes. Word 2 u + h: output row + 8 h; byte k holds
            input 16 u + 4 quad + k
    fifth   5 bits: 32 lanes x 4 bytes. Bit 8 k + 4 q + 2 u + h: the fifth bit of group q, output
            row + 8 h, input 16 u + 4 quad + k
    scales  fp16 [8 rows][group q][h], of output row + 8 h
    shifts  the same, if shifted

Pairs of groups follow each other, then tiles; a missing group or output has scale 0. One block
takes a tile and eight warps share its pairs, each with its own ring of asynchronous copies.

Activations are rounded to 8 bits per row and group, as in reference.py: a group's sum is an exact
integer, the order of groups depends on n_in alone, and so a row's result is bit-identical alone and
in any batch of up to 32. More rows go through `dense` and the library's matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels import cuda_build
from kernels.cuda_build import KINDS, Kernels
from kernels.linear_group.spec import GROUP, Codes

TILE = 16
ROWS = 8
MAX_ROWS = 32
PAIR = 2 * GROUP
RECORD = 704
"""Bytes of 8 rounded rows of a pair of groups: codes, scales, where sums start (cuda.cu)."""
FORMATS = ((4, False), (4, True), (5, False), (5, True), (8, False))
"""(bits, shifted) that there are kernels for."""


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in this module's layout: data uint8 [tiles, pairs of groups, bytes of a pair]."""

    data: Tensor
    bits: int
    shifted: bool
    n_in: int
    n_out: int

    def to(self, device: torch.device | str) -> PackedWeight:
        """The same on another device."""
        return PackedWeight(self.data.to(device), self.bits, self.shifted, self.n_in, self.n_out)


def takes(bits: int, shifted: bool) -> bool:
    """Whether there are kernels for such codes."""
    return (bits, shifted) in FORMATS


def pack(w: Codes) -> PackedWeight:
    """The kernels' layout of a weight, on its device. Raises ValueError for other formats."""
    n_out, n_in = w.codes.shape
    shifted = w.shift is not None
    if not takes(w.bits, shifted):
        raise ValueError(f"no CUDA kernel for {w.bits} bits, shifted={shifted}")
    if n_in % GROUP:
        raise ValueError(f"n_in must be a multiple of {GROUP}, it is {n_in}")
    tiles, pairs = -(-n_out // TILE), -(-n_in // PAIR)
    pad = (0, pairs * PAIR - n_in, 0, tiles * TILE - n_out)
    codes = torch.nn.functional.pad(w.codes, pad)
    # [tile, h, row, pair, q, u, quad, k]
    codes = codes.view(tiles, 2, 8, pairs, 2, 2, 4, 4)
    if w.bits == 8:
        parts = [codes.permute(0, 3, 4, 2, 6, 5, 1, 7).flatten(2)]  # q, lane, u, h, k
    else:
        lanes = codes.permute(0, 3, 2, 6, 4, 1, 7, 5)  # lane, q, h, k, u
        parts = [((lanes[..., 0] & 15) | ((lanes[..., 1] & 15) << 4)).flatten(2)]
    if w.bits == 5:
        bits = codes.permute(0, 3, 2, 6, 7, 4, 5, 1).flatten(5) >> 4  # lane, k, (q, u, h)
        places = torch.arange(8, dtype=torch.uint8, device=bits.device)
        parts.append((bits << places).sum(-1, dtype=torch.uint8).flatten(2))
    for values in (w.scale, w.shift):
        if values is not None:
            groups = (0, 2 * pairs - values.shape[1], 0, tiles * TILE - n_out)
            padded = torch.nn.functional.pad(values, groups).view(tiles, 2, 8, pairs, 2)
            ordered = padded.permute(0, 3, 2, 4, 1).flatten(2).contiguous()  # row, q, h
            parts.append(ordered.view(torch.uint8))
    return PackedWeight(torch.cat(parts, -1).contiguous(), w.bits, shifted, n_in, n_out)


def bytes_moved(n: int, w: PackedWeight, itemsize: int = 2) -> int:
    """Bytes of the packed weight, x and y once, and of the rounded x, written and read."""
    return w.data.numel() + 2 * _record_bytes(n, w.n_in) + itemsize * n * (w.n_in + w.n_out)


def workspace(n_in: int, device: torch.device | str, n: int = MAX_ROWS) -> Tensor:
    """Room for up to n rounded rows of up to n_in inputs: uint8, uninitialised.

    One product at a time may use it: those on one stream, or a graph's.
    """
    return torch.empty(_record_bytes(n, n_in), dtype=torch.uint8, device=device)


def linear_group(
    x: Tensor,
    w: PackedWeight,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    work: Tensor | None = None,
    kernels: Kernels | None = None,
) -> Tensor:
    """y = x @ W.T + bias. x fp16, bf16 or fp32 [n <= 32, n_in], rows contiguous; bias fp32 [n_out].

    Returns [n, n_out] of x's type, or `out` (any of the types). Two launches on the current stream
    and no allocation when `out` and `work` are given, so a CUDA graph can hold it. Raises
    ValueError for shapes, types or devices that don't fit, cuda_build.CudaUnavailable,
    cuda_build.LaunchError.
    """
    kernels = kernels or cuda_build.library()
    n = x.shape[0]
    if x.ndim != 2 or x.shape[1] != w.n_in or not 1 <= n <= MAX_ROWS:
        raise ValueError(f"x must be [1 to {MAX_ROWS}, {w.n_in}], it is {list(x.shape)}")
    y = x.new_empty(n, w.n_out) if out is None else out
    if tuple(y.shape) != (n, w.n_out):
        raise ValueError(f"out must be {[n, w.n_out]}, it is {list(y.shape)}")
    for name, rows in (("x", x), ("out", y)):
        if rows.dtype not in KINDS or rows.stride(1) != 1:
            raise ValueError(f"{name}: rows of fp32, fp16 or bf16 side by side are needed")
    if x.stride(0) % 4 or x.data_ptr() % (4 * x.element_size()):
        raise ValueError("x: rows must begin at multiples of 4 elements")
    if bias is not None and (bias.dtype != torch.float32 or bias.shape != (w.n_out,)):
        raise ValueError(f"bias must be fp32 [{w.n_out}]")
    if bias is not None and not bias.is_contiguous():
        raise ValueError("bias must be contiguous")
    work = workspace(w.n_in, x.device, n) if work is None else work
    if work.dtype != torch.uint8 or work.numel() < _record_bytes(n, w.n_in):
        raise ValueError("the workspace is too small: workspace(n_in, device, n)")
    kernels.check(x, y, w.data, bias, work)
    tiles = _row_tiles(n)
    kernels.launch(
        "linear_group_round", x, KINDS[x.dtype], x.stride(0), n, w.n_in, w.bits, w.shifted, tiles,
        work,
    )  # fmt: skip
    kernels.launch(
        "linear_group_product", w.data, w.bits, w.shifted, w.n_in, w.n_out, work, tiles, n, bias,
        y, KINDS[y.dtype], y.stride(0),
    )  # fmt: skip
    return y


def dense(
    w: PackedWeight,
    dtype: torch.dtype,
    *,
    out: Tensor | None = None,
    kernels: Kernels | None = None,
) -> Tensor:
    """The weight [n_out, n_in] in fp32, fp16 or bf16, for products with many rows (prompts).

    Raises ValueError, cuda_build.CudaUnavailable, cuda_build.LaunchError.
    """
    kernels = kernels or cuda_build.library()
    to = torch.empty(w.n_out, w.n_in, dtype=dtype, device=w.data.device) if out is None else out
    if to.dtype not in KINDS or tuple(to.shape) != (w.n_out, w.n_in) or not to.is_contiguous():
        raise ValueError(f"out must be fp32, fp16 or bf16 {[w.n_out, w.n_in]}, contiguous")
    kernels.check(w.data, to)
    kernels.launch(
        "linear_group_unpack", w.data, w.bits, w.shifted, w.n_in, w.n_out, to, KINDS[to.dtype]
    )
    return to


def _row_tiles(n: int) -> int:
    """Groups of 8 rows that the kernel for n rows has: 1, 2 or 4."""
    return 1 if n <= ROWS else 2 if n <= 2 * ROWS else 4


def _record_bytes(n: int, n_in: int) -> int:
    return _row_tiles(n) * -(-n_in // PAIR) * RECORD
