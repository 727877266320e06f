"""Shapes and tolerances of rope and rope_at.

rope: x [n, heads, d] fp32 in place, turns [n, 1, d/2] complex64. rope_at, for a GPU: queries and
keys of any float type in place, rotated in fp32, by rows of a table fp32 [max, d]; Llama 3's
scaling is in the table.
"""

from __future__ import annotations

ATOL = 1e-5
RTOL = 1e-5
SHAPES = ((1, 12, 64), (3, 16, 64), (7, 4, 128), (5, 3, 8))


def bytes_moved(n: int, heads: int, d: int, item: int = 4) -> int:
    """Bytes read and written once each; heads: of queries and keys; item: bytes of a number."""
    return 2 * n * heads * d * item + 4 * n * d
