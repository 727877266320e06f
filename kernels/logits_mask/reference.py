"""logits_mask in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def logits_mask(logits: Tensor, bits: Tensor, rows: Tensor) -> None:
    """logits [b, v] in place; bits int32 [b, words]; rows int32 [m], negative ones skipped."""
    v = logits.shape[1]
    chosen = rows[rows >= 0].long()
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits[chosen].unsqueeze(-1) >> places & 1).flatten(1)[:, :v] == 1
    beyond = allowed.new_zeros(len(chosen), v - allowed.shape[1])
    banned = ~torch.cat((allowed, beyond), 1)
    logits[chosen] = logits[chosen].masked_fill(banned, float("-inf"))
