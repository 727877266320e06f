"""The gated unit of a Llama-family MLP in plain PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [n, 2f], gate first -> silu(gate) * up, [n, f] of its dtype, in fp32."""
    f = gate_up.shape[-1] // 2
    return F.silu(gate_up[:, :f].float()).mul_(gate_up[:, f:]).to(gate_up.dtype)
