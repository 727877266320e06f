"""logits_mask in Triton: reads only the bits, writes only what is ruled out."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall


def logits_mask(logits: Tensor, bits: Tensor, rows: Tensor) -> None:
    """logits [b, v] with dense rows, in place; bits int32 [b, words]; rows int32 [m].

    Negative rows are skipped, so a launch of one shape serves any number of grammars.
    """
    call(logits, bits, rows).run()


def call(logits: Tensor, bits: Tensor, rows: Tensor) -> KernelCall:
    """The launch: a program takes BLOCK_W words of a row's bits."""
    v, words = logits.shape[1], bits.shape[1]
    default = {"BLOCK_W": 128, "num_warps": 4, "num_stages": 1}
    tiles = tuning.launch("logits_mask", "all", logits.device, default)
    arguments = {
        "logits": logits,
        "bits": bits,
        "rows": rows,
        "logits_row": logits.stride(0),
        "bits_row": bits.stride(0),
        "v": v,
        "words": words,
        "BLOCK_W": tiles["BLOCK_W"],
    }
    options = {name: tiles[name] for name in ("num_warps", "num_stages")}
    grid = (len(rows), -(-v // (32 * tiles["BLOCK_W"])))
    return KernelCall(_rule_out, grid, arguments, options)


@triton.jit
def _rule_out(logits, bits, rows, logits_row, bits_row, v, words, BLOCK_W: tl.constexpr):
    row = tl.load(rows + tl.program_id(0)).to(tl.int64)
    if row >= 0:
        word = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
        place = tl.arange(0, 32)
        # words past the end read as 0: nothing there is allowed
        allowed = tl.load(bits + row * bits_row + word, word < words, other=0)
        ruled_out = ((allowed[:, None] >> place[None, :]) & 1) == 0
        token = word[:, None] * 32 + place[None, :]
        banned = tl.full((BLOCK_W, 32), float("-inf"), logits.dtype.element_ty)
        tl.store(logits + row * logits_row + token, banned, ruled_out & (token < v))
