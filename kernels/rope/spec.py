"""Shapes and tolerances of rope: x [n, heads, d] fp32 in place, turns [n, 1, d/2] complex64."""

from __future__ import annotations

ATOL = 1e-5
RTOL = 1e-5
SHAPES = ((1, 12, 64), (3, 16, 64), (7, 4, 128), (5, 3, 8))


def bytes_moved(n: int, heads: int, d: int) -> int:
    """Bytes read and written once each."""
    return 4 * (2 * n * heads * d + n * d)
