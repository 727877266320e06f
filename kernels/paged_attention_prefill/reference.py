"""Attention of a ragged batch over a paged cache (arXiv 2309.06180) in plain PyTorch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from kernels.kv_write.reference import numbers
from kernels.paged_attention_decode.spec import check


def paged_attention_prefill(
    q: Tensor,
    cache: Tensor,
    tables: Tensor,
    starts: Tensor,
    seen: Tensor,
    *,
    scale: float,
    window: int = 0,
    max_q: int,
    out: Tensor | None = None,
    scales: Tensor | None = None,
) -> Tensor:
    """-> [n, heads, d] of q's dtype, in `out` if given; see spec.py.

    Raises ValueError for a row of more than max_q queries.
    """
    check(q, cache, tables, seen, scales)
    result = torch.zeros_like(q) if out is None else out
    begins, lengths = starts.tolist(), seen.tolist()
    for row, (begin, end) in enumerate(pairwise(begins)):
        if end - begin > max_q:
            raise ValueError(f"row {row} has {end - begin} queries, max_q is {max_q}")
        if end > begin:
            part = slice(begin, end)
            result[part] = _row(q[part], cache, tables[row], lengths[row], scale, window, scales)
    return result


def _row(
    q: Tensor,
    cache: Tensor,
    table: Tensor,
    seen: int,
    scale: float,
    window: int,
    scales: Tensor | None,
) -> Tensor:
    """q [n, heads, d], the last n of `seen` positions -> [n, heads, d]."""
    n, heads, d = q.shape
    kv_heads, size = cache.shape[2:4]
    if seen == 0:
        return torch.zeros_like(q)
    low = max(seen - n + 1 - window, 0) if window else 0
    at = torch.arange(low, seen, device=q.device)
    where = table.long()[at // size], at % size
    found = (
        numbers(
            cache[side, where[0], :, where[1]],
            None if scales is None else scales[side, where[0], :, where[1]],
            q.dtype,
        )
        for side in (0, 1)
    )
    keys, values = (side.transpose(0, 1) for side in found)
    query = q.transpose(0, 1).reshape(kv_heads, -1, d)  # the queries of a key head's group
    scores = (query @ keys.transpose(1, 2)).view(kv_heads, -1, n, len(at))
    own = torch.arange(seen - n, seen, device=q.device)[:, None]
    visible = at <= own
    if window:
        visible &= at > own - window
    wide = torch.promote_types(q.dtype, torch.float32)
    weights = torch.softmax((scores.to(wide) * scale).masked_fill(~visible, -torch.inf), -1)
    mixed = weights.to(q.dtype).view(kv_heads, -1, len(at)) @ values
    out: Tensor = mixed.view(heads, n, d).transpose(0, 1)
    return out
