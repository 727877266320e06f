"""linear_group in Triton: weights of 4, 5 or 8 bits become the activations' type on their way in.

A program takes BLOCK_N outputs and walks their inputs, GROUPS groups a step: codes and scales
are read once, in straight runs, made numbers and multiplied on the tensor cores. Few rows and few
outputs leave a GPU idle, so the inputs are split over programs and a second kernel adds the
parts up, in order. The grid depends on shapes only.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall
from kernels.linear_group.gpu import GpuCodes, shape_class
from kernels.linear_group.spec import GROUP

_GROUP = tl.constexpr(GROUP)
_MAGIC = tl.constexpr(0x4B000000)
"""The bits of 2^23 as fp32: a code put into its low bits is that number plus the code."""


def linear_group(
    x: Tensor, w: GpuCodes, bias: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """x [n, n_in] fp16, bf16 or fp32, bias [n_out] -> [n, n_out] of x's dtype, in `out` if given.

    x and out with dense rows. The weight is rounded to x's dtype, sums are fp32.
    """
    if out is None:
        out = torch.empty((x.shape[0], w.n_out), dtype=x.dtype, device=x.device)
    for call in calls(x, w, bias, out):
        call.run()
    return out


def calls(x: Tensor, w: GpuCodes, bias: Tensor | None, out: Tensor) -> tuple[KernelCall, ...]:
    """The launches of one product, in order. ValueError if the shapes don't fit."""
    n = x.shape[0]
    for name, given, width in (("x", x, w.n_in), ("out", out, w.n_out)):
        if given.shape != (n, width) or given.stride(1) != 1:
            shape = list(given.shape)
            raise ValueError(f"{name} must be [{n}, {width}] with dense rows, it is {shape}")
    tiles = _tiles(n, w)
    groups = w.n_in // GROUP
    steps = -(-groups // tiles["GROUPS"])
    n_tiles = -(-n // tiles["BLOCK_M"]), -(-w.n_out // tiles["BLOCK_N"])
    wanted = tiles["WAVES"] * _multiprocessors(x.device) // max(1, n_tiles[0] * n_tiles[1])
    share = -(-steps // max(1, min(wanted, steps // tiles["MIN_STEPS"])))
    splits = -(-steps // share)
    parts = out if splits == 1 else torch.empty(
        (splits, n, w.n_out), dtype=torch.float32, device=x.device
    )  # fmt: skip
    multiply = KernelCall(
        _multiply,
        (*n_tiles, splits),
        {
            "x": x,
            "data": w.data,
            "fifth": w.fifth,
            "scale": w.scale,
            "shift": w.shift,
            "bias": bias if splits == 1 else None,
            "out": parts,
            "n": n,
            "n_out": w.n_out,
            "groups": groups,
            "x_row": x.stride(0),
            "out_row": parts.stride(-2),
            "share": share,
            "BITS": w.bits,
            "EVEN": groups % tiles["GROUPS"] == 0,
            "BLOCK_M": tiles["BLOCK_M"],
            "BLOCK_N": tiles["BLOCK_N"],
            "GROUPS": tiles["GROUPS"],
        },
        {name: tiles[name] for name in ("num_warps", "num_stages")},
    )
    if splits == 1:
        return (multiply,)
    adding: dict[str, object] = {"parts": parts, "bias": bias, "out": out, "n_out": w.n_out}
    adding |= {"out_row": out.stride(0), "size": n * w.n_out, "SPLITS": splits, "BLOCK": 1024}
    add = KernelCall(_add, (-(-n * w.n_out // 1024),), adding, {"num_warps": 4, "num_stages": 1})
    return multiply, add


def _tiles(n: int, w: GpuCodes) -> tuning.Launch:
    """BLOCK_M rows, BLOCK_N outputs, GROUPS groups of inputs a step. WAVES: programs per
    multiprocessor to aim at. MIN_STEPS: a part's least steps, so that adding up stays small.

    Copies run ahead of the products only where a thread copies 4 bytes or more: two scales.
    """
    rows = 16 if n <= 16 else 32 if n <= 32 else 64
    if rows == 64:
        outputs, groups, waves, warps, stages = 128, 4, 1, 8, 3
    elif rows == 32 and w.bits < 8:
        outputs, groups, waves, warps, stages = 32, 8, 4, 4, 3
    else:
        outputs, groups, waves, warps, stages = 32, 4, 8, 2, 5 if rows == 16 else 4
    default = {"BLOCK_M": rows, "BLOCK_N": outputs, "GROUPS": groups, "WAVES": waves}
    default |= {"MIN_STEPS": 32 // groups, "num_warps": warps, "num_stages": stages}
    return tuning.launch("linear_group", shape_class(w.bits, n), w.data.device, default)


@cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # the interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def _multiply(
    x, data, fifth, scale, shift, bias, out, n, n_out, groups, x_row, out_row, share,
    BITS: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Rows of one tile times outputs of another, over one share of the steps."""
    RUN: tl.constexpr = _GROUP if BITS == 8 else _GROUP // 2
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    exists = output < n_out
    group, byte = tl.arange(0, GROUPS), tl.arange(0, RUN)
    column = tl.arange(0, GROUPS * RUN)
    inputs = column // RUN * _GROUP + column % RUN
    rows = x + row.to(tl.int64)[:, None] * x_row + inputs[None, :]
    codes = data + (output.to(tl.int64) * groups)[:, None, None] * RUN + byte[None, None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    begin = tl.program_id(2) * share * GROUPS
    for first in range(begin, tl.minimum(begin + share * GROUPS, groups), GROUPS):
        here = first + group
        kept = exists[:, None] & (EVEN | (here < groups)[None, :])
        wanted = (row < n)[:, None] & (EVEN | (first + column // RUN < groups)[None, :])
        words = tl.load(codes + here[None, :, None] * RUN, kept[:, :, None], other=0).to(tl.int32)
        place = here[None, :] * n_out + output[:, None]
        by = tl.load(scale + place, kept, other=0.0).to(tl.float32)[:, :, None]
        plus = by * 0.0
        if shift is not None:
            plus = tl.load(shift + place, kept, other=0.0).to(tl.float32)[:, :, None]
        high = tl.zeros([BLOCK_N, GROUPS, 1], tl.int32)
        if BITS == 5:
            bits = fifth + output.to(tl.int64)[:, None] * groups + here[None, :]
            high = tl.load(bits, kept, other=0)[:, :, None]
        for half in tl.static_range(_GROUP // RUN):
            code = words
            if BITS < 8:
                code = (words >> (4 * half)) & 15
            if BITS == 5:
                code |= ((high >> (byte + half * RUN)[None, None, :]) & 1) << 4
            number = (code | _MAGIC).to(tl.float32, bitcast=True) - 8388608.0
            if shift is None:
                number -= 2 ** (BITS - 1)
            number = number * by + plus
            weight = tl.reshape(number.to(x.dtype.element_ty), [BLOCK_N, GROUPS * RUN])
            given = tl.load(rows + first * _GROUP + half * RUN, wanted, other=0.0)
            total = tl.dot(given, tl.trans(weight), total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + output, exists, other=0.0).to(tl.float32)[None, :]
    where = (tl.program_id(2).to(tl.int64) * n + row)[:, None] * out_row + output[None, :]
    tl.store(out + where, total.to(out.dtype.element_ty), (row < n)[:, None] & exists[None, :])


@triton.jit
def _add(parts, bias, out, n_out, out_row, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(SPLITS):
        total += tl.load(parts + part * size.to(tl.int64) + at, at < size, other=0.0)
    if bias is not None:
        total += tl.load(bias + at % n_out, at < size, other=0.0).to(tl.float32)
    place = out + (at // n_out).to(tl.int64) * out_row + at % n_out
    tl.store(place, total.to(out.dtype.element_ty), at < size)
