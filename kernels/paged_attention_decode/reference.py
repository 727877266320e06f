"""Decode attention over a paged cache (arXiv 2309.06180) in plain PyTorch, row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paged_attention_prefill.reference import paged_attention_prefill


def decode_workspace(q: Tensor, cache: Tensor, tables: Tensor, window: int = 0) -> Tensor:
    """The reference needs none: an empty tensor."""
    return q.new_empty(0, dtype=torch.float32)


def paged_attention_decode(
    q: Tensor,
    cache: Tensor,
    tables: Tensor,
    seen: Tensor,
    *,
    scale: float,
    window: int = 0,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """-> [b, heads, d] of q's dtype, in `out` if given. See spec.py."""
    starts = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
    return paged_attention_prefill(
        q, cache, tables, starts, seen,
        scale=scale, window=window, max_q=1, out=out, scales=scales,
    )  # fmt: skip
