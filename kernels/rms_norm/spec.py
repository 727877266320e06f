"""Shapes and tolerances of rms_norm and rms_norm_add: x [n, d], weight [d] -> [n, d].

fp32 on the CPU; any float type on a GPU, where a row is normalised in fp32 and rounded once.
"""

from __future__ import annotations

ATOL = 1e-5
RTOL = 1e-5
SHAPES = ((1, 576), (3, 896), (17, 1536), (5, 33))


def bytes_moved(n: int, d: int, item: int = 4, *, added: bool = False) -> int:
    """Bytes read and written once each; item: bytes of a number; added: with a residual."""
    return item * ((4 if added else 2) * n * d + d)
