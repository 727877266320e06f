"""Shapes and tolerances of silu_mul: [n, 2f] -> [n, f], fp32; on a GPU any float type."""

from __future__ import annotations

ATOL = 1e-6
RTOL = 1e-5
SHAPES = ((1, 1536), (3, 4864), (17, 96), (5, 33))


def bytes_moved(n: int, f: int, item: int = 4) -> int:
    """Bytes read and written once each; item: bytes of a number."""
    return item * 3 * n * f
