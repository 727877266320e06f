"""Shapes and tolerances of silu_mul: [n, 2f] fp32 -> [n, f] fp32."""

from __future__ import annotations

ATOL = 1e-6
RTOL = 1e-5
SHAPES = ((1, 1536), (3, 4864), (17, 96), (5, 33))


def bytes_moved(n: int, f: int) -> int:
    """Bytes read and written once each."""
    return 4 * 3 * n * f
