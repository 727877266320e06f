"""Shapes, formats and tolerances of linear_group: weights of 4, 5 or 8 bits in groups of 32 inputs.

w = scale * code + shift ("shifted"), or w = scale * (code - 2^(bits - 1)), with one fp16 scale (and
shift) per output and group. These are the block formats of GGUF files (Q4_0, Q4_1, Q5_0, Q5_1,
Q8_0, and Q4_K / Q5_K whose two-level scales multiply out), so a file's codes are used as they are.

Activations are rounded to 8 bits per row and group with their own scale; a group's integer sum is
exact and groups are added in order, so a row's result is bit-identical alone and in any batch.

Packed, 32 outputs are a tile and tiles follow each other. A tile holds, for each group in turn:

    bits     5 bits only: of twice 16 outputs, a vector of 64 bytes: byte 4 * output + k holds, of
             vector j below, in bit 2 j + 1 the fifth bit of input 4 j + k, in bit 2 j the first bit
             of input 16 + 4 j + k
    codes    4 and 5 bits: four times, of twice 16 outputs, vector j of 64 bytes; byte
             4 * output + k holds input 4 j + k below, input 16 + 4 j + k (5 bits: all but its
             first) above
             8 bits: the same, but a vector of inputs 4 j + k, of both parts, then one of inputs
             16 + 4 j + k
    scales   [32] fp16
    shifts   [32] fp16, if shifted

so one row of activations reads a matrix in one straight stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
TILE = 32
LANES = 16
REL_ERROR = 0.01
"""Largest relative error of an output row (2-norm) against the fp32 product with the same codes."""
SHAPES = ((576, 576), (576, 192), (1536, 576), (896, 128), (4864, 896), (64, 40))
"""(n_in, n_out)."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight as codes: uint8 [n_out, n_in], scale and shift fp16 [n_out, n_in / 32]."""

    bits: int
    codes: Tensor
    scale: Tensor
    shift: Tensor | None

    def dense(self) -> Tensor:
        """fp32 [n_out, n_in]: the weight that the codes stand for."""
        n_out, n_in = self.codes.shape
        codes = self.codes.view(n_out, -1, GROUP).float()
        if self.shift is None:
            codes = codes - 2 ** (self.bits - 1)
        dense = codes * self.scale.float().unsqueeze(-1)
        if self.shift is not None:
            dense += self.shift.float().unsqueeze(-1)
        return dense.view(n_out, n_in)

    def rows(self, order: Tensor) -> Codes:
        """The same outputs in another order."""
        shift = None if self.shift is None else self.shift[order]
        return Codes(self.bits, self.codes[order], self.scale[order], shift)


def quantise(weight: Tensor, bits: int = 8) -> Codes:
    """weight fp32 [n_out, n_in], n_in a multiple of 32 -> symmetric codes, nearest."""
    n_out, n_in = weight.shape
    groups = weight.view(n_out, -1, GROUP)
    zero = 2 ** (bits - 1)
    scale = (groups.abs().amax(-1) / (zero - 1)).half()
    by = scale.float()
    inverse = torch.where(by > 0, 1.0 / by, torch.zeros_like(by)).unsqueeze(-1)
    codes = (groups * inverse).round_().clamp_(-zero, zero - 1).add_(zero)
    return Codes(bits, codes.to(torch.uint8).view(n_out, n_in), scale, None)


def pack(w: Codes) -> Tensor:
    """The kernels' layout of a weight, uint8 [tiles, groups, bytes of a group]."""
    n_out, n_in = w.codes.shape
    tiles, groups = -(-n_out // TILE), n_in // GROUP
    pad = (0, 0, 0, tiles * TILE - n_out)
    codes = torch.nn.functional.pad(w.codes, pad)
    # [tile, part, output, group, half, j, k] -> [tile, group, j, half, part, output * 4 + k]
    vectors = codes.view(tiles, TILE // LANES, LANES, groups, 2, 4, 4)
    vectors = vectors.permute(0, 3, 5, 4, 1, 2, 6).reshape(tiles, groups, 4, 2, TILE // LANES, 64)
    first, last = vectors[:, :, :, 0], vectors[:, :, :, 1]
    pieces = [vectors.flatten(2)]
    if w.bits < 8:
        above = last >> 1 if w.bits == 5 else last
        pieces = [((first & 15) | (above << 4)).flatten(2)]
    if w.bits == 5:
        place = 2 * torch.arange(4, dtype=torch.uint8).view(4, 1, 1)
        bits = ((last & 1) << place) | ((first >> 4) << (place + 1))
        pieces.insert(0, bits.sum(2, dtype=torch.uint8).flatten(2))
    for values in (w.scale, w.shift):
        if values is not None:
            padded = torch.nn.functional.pad(values, pad).view(tiles, TILE, groups)
            pieces.append(padded.transpose(1, 2).contiguous().view(torch.uint8))
    return torch.cat(pieces, -1)


def bytes_moved(n: int, w: Codes) -> int:
    """Bytes of the packed weight, and of activations and results in fp32, once each."""
    n_out, n_in = w.codes.shape
    per_group = GROUP * w.bits / 8 + (2 if w.shift is None else 4)
    return int(n_out * n_in / GROUP * per_group) + 4 * n * (n_in + n_out)
