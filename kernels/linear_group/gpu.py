"""A weight in groups of 32 inputs, laid out for a GPU's Triton kernel (linear_w4 and linear_w8).

    codes    uint8, outputs one after the other
             4 and 5 bits: 16 bytes a group; byte j holds input j below and input 16 + j above
             8 bits: 32 bytes a group
    fifth    int32 [n_out, groups], 5 bits only: bit j is input j's fifth bit
    scale    fp16 [groups, n_out]
    shift    the same, if shifted

Neighbouring outputs read neighbouring scales, and an output's codes are one straight run; nothing
is rounded again: `codes()` gives back what was packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.linear_group.spec import GROUP, Codes

HALF = GROUP // 2


@dataclass(frozen=True, slots=True)
class GpuCodes:
    """Tensors as above, on one device."""

    bits: int
    n_in: int
    n_out: int
    data: Tensor
    fifth: Tensor | None
    scale: Tensor
    shift: Tensor | None

    @property
    def n_bytes(self) -> int:
        """Bytes that a product reads of the weight."""
        parts = (self.data, self.fifth, self.scale, self.shift)
        return sum(part.nbytes for part in parts if part is not None)

    def codes(self) -> Codes:
        """What was packed, on this device."""
        codes = self.data.view(self.n_out, -1, GROUP if self.bits == 8 else HALF)
        if self.bits < 8:
            codes = torch.cat((codes & 15, codes >> 4), -1)
        if self.fifth is not None:
            place = torch.arange(GROUP, device=codes.device, dtype=torch.int32)
            fifth = self.fifth.unsqueeze(-1) >> place & 1
            codes = codes | (fifth << 4).to(torch.uint8)
        shift = None if self.shift is None else self.shift.T.contiguous()
        codes = codes.reshape(self.n_out, self.n_in)
        return Codes(self.bits, codes, self.scale.T.contiguous(), shift)

    def dense(self, dtype: torch.dtype) -> Tensor:
        """The weight [n_out, n_in]."""
        return self.codes().dense().to(dtype)


def shape_class(bits: int, n: int) -> str:
    """A product with n rows in `kernels.tuning`: "w4x16" up to 16 rows, "w4x32", or "w4x64"."""
    return f"w{bits}x{16 if n <= 16 else 32 if n <= 32 else 64}"


def pack(w: Codes, device: torch.device | str) -> GpuCodes:
    """Raises ValueError unless n_in is a multiple of 32 and a code has 4, 5 or 8 bits."""
    n_out, n_in = w.codes.shape
    if n_in % GROUP:
        raise ValueError(f"n_in must be a multiple of {GROUP}, it is {n_in}")
    if w.bits not in (4, 5, 8):
        raise ValueError(f"codes have 4, 5 or 8 bits, not {w.bits}")
    groups = w.codes.to(device).view(n_out, -1, GROUP)
    data, fifth = groups, None
    if w.bits < 8:
        data = (groups[..., :HALF] & 15) | (groups[..., HALF:] << 4)
    if w.bits == 5:
        place = torch.arange(GROUP, device=groups.device)
        word = ((groups >> 4 & 1).long() << place).sum(-1)
        fifth = torch.where(word < 2**31, word, word - 2**32).to(torch.int32)
    return GpuCodes(
        bits=w.bits,
        n_in=n_in,
        n_out=n_out,
        data=data.flatten(1).contiguous(),
        fifth=fifth,
        scale=w.scale.to(device).T.contiguous(),
        shift=None if w.shift is None else w.shift.to(device).T.contiguous(),
    )
