"""linear_w8 in plain PyTorch: float64 holds every integer sum exactly, so order can't matter."""

from __future__ import annotations

from torch import Tensor

LEVELS = 127.0


class linear_w8:
    """A weight held as int8; calling it multiplies. Owns its copy of the weight."""

    def __init__(self, q: Tensor, scale: Tensor) -> None:
        """q int8 [n_out, n_in]; scale fp32 [n_out]."""
        self.n_out, self.n_in = q.shape
        self._q = q.contiguous()
        self._scale = scale

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x fp32 [n, n_in], bias fp32 [n_out] -> fp32 [n, n_out]."""
        top = x.abs().amax(-1, True).clamp_min_(1e-30)
        levels = (x / top).mul_(LEVELS).round_().double()
        y = (levels @ self._q.double().T).float().mul_(self._scale).mul_(top / LEVELS)
        return y if bias is None else y.add_(bias)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += self(x), in place."""
        residual.add_(self(x))
