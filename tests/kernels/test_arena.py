"""Memory for weights comes from the system itself: what was used before lies in small pages."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from kernels.linear_group.cpu import Arena
from tests.support import native

pytestmark = pytest.mark.unit

CHUNK = 24 << 20


def resident(address: int, n_bytes: int) -> int:
    """Pages of it that lie in memory already."""
    pages = (ctypes.c_ubyte * (n_bytes // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), pages) == 0
    return sum(page & 1 for page in pages)


def test_memory_that_was_used_before_is_not_given_again() -> None:
    for _ in range(3):  # the first makes malloc keep what is freed
        np.ones(CHUNK + (4 << 20), np.uint8)
    arena = Arena(native.library(), CHUNK)
    address = arena.take(CHUNK)
    assert address % (2 << 20) == 0, "a huge page begins there"
    assert resident(address, CHUNK) == 0
    ctypes.memset(address, 7, CHUNK)
    assert resident(address, CHUNK) == CHUNK // mmap.PAGESIZE
