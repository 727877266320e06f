"""The gated unit of a Llama-family MLP in plain PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up fp32 [n, 2f], gate first -> silu(gate) * up, fp32 [n, f]."""
    f = gate_up.shape[-1] // 2
    return F.silu(gate_up[:, :f]).mul_(gate_up[:, f:])
