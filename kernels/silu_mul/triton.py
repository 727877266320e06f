"""The gated unit of a Llama-family MLP in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [n, 2f] with dense rows, gate first -> silu(gate) * up, [n, f]; fp32 inside."""
    n, f = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((n, f), dtype=gate_up.dtype, device=gate_up.device)
    call(gate_up, out).run()
    return out


def call(gate_up: Tensor, out: Tensor) -> KernelCall:
    """The launch: a program takes BLOCK columns of a row. out [n, f], contiguous."""
    n, f = out.shape
    default = {"BLOCK": 1024, "num_warps": 4, "num_stages": 1}
    tiles = tuning.launch("silu_mul", "all", gate_up.device, default)
    arguments = {"x": gate_up, "out": out, "x_row": gate_up.stride(0), "f": f}
    arguments["BLOCK"] = tiles["BLOCK"]
    options = {name: tiles[name] for name in ("num_warps", "num_stages")}
    return KernelCall(_gate, (n, -(-f // tiles["BLOCK"])), arguments, options)


@triton.jit
def _gate(x, out, x_row, f, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < f
    gate = tl.load(x + row * x_row + at, inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_row + f + at, inside, other=0.0).to(tl.float32)
    tl.store(out + row * f + at, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), inside)
