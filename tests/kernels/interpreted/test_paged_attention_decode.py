from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import tuning
from kernels.paged_attention.tile import shape_class
from kernels.paged_attention_decode import reference, spec, triton
from tests.kernels.interpreted.paged import (
    Batch,
    assert_as_good,
    batch,
    distant,
    distant_int8,
    in_int8,
)

pytestmark = pytest.mark.interp

SEEN = (0, 1, 15, 16, 17, 200)
CASES = [
    # heads, kv_heads, d, block, dtype, window
    (4, 1, 64, 16, torch.float16, 0),
    (7, 1, 80, 32, torch.float32, 0),
    (2, 1, 96, 16, torch.float32, 33),
    (1, 1, 128, 32, torch.bfloat16, 0),
    (3, 1, 128, 16, torch.float16, 64),
    (17, 1, 33, 16, torch.float32, 0),
    (6, 2, 64, 16, torch.bfloat16, 16),
]


def truth(given: Batch, window: int) -> Tensor:
    return reference.paged_attention_decode(
        given.q, given.cache, given.tables, given.seen,
        scale=given.scale, window=window, scales=given.scales,
    )  # fmt: skip


@pytest.mark.parametrize(("heads", "kv_heads", "d", "block", "dtype", "window"), CASES)
def test_matches_the_reference(
    heads: int, kv_heads: int, d: int, block: int, dtype: torch.dtype, window: int
) -> None:
    given = batch(
        [(1, seen) for seen in SEEN], heads=heads, kv_heads=kv_heads, d=d, block=block,
        dtype=dtype, window=window,
    )  # fmt: skip
    got = triton.paged_attention_decode(
        given.q, given.cache, given.tables, given.seen, scale=given.scale, window=window
    )
    assert torch.equal(got[0], torch.zeros_like(got[0]))
    assert_as_good(got, lambda b: truth(b, window), given, spec.ERROR_FACTOR)


@pytest.mark.parametrize(
    ("dtype", "window", "larger"), [(torch.float16, 0, 1), (torch.float32, 150, 40)]
)
def test_split_positions_are_joined(dtype: torch.dtype, window: int, larger: int) -> None:
    """Shares nobody fills are never read, whatever lies in the workspace.

    larger: of the scores, whose exponentials then overflow.
    """
    given = batch(
        [(1, 0), (1, 40), (1, 391)], heads=2, kv_heads=1, d=64, dtype=dtype, window=window
    )
    given = replace(given, scale=given.scale * larger)
    shape = f"d64x{8 * given.cache.element_size()}"
    table = {"paged_attention_decode": {shape: {"WAVES": 9, "MIN_TILES": 1, "TILE": 64}}}
    out = torch.full((3, 2, 80), math.nan, dtype=dtype)[..., :64]
    with tuning.using(table):
        workspace = triton.decode_workspace(given.q, given.cache, given.tables, window)
        workspace.fill_(math.nan)
        attend, _join = triton.calls(
            given.q, given.cache, given.tables, given.seen, out, workspace,
            scale=given.scale, window=window,
        )  # fmt: skip
        assert attend.grid == (3, 1, 3)
        got = triton.paged_attention_decode(
            given.q, given.cache, given.tables, given.seen,
            scale=given.scale, window=window, out=out, workspace=workspace,
        )  # fmt: skip
        assert got is out
        with pytest.raises(ValueError, match="workspace holds"):
            triton.calls(
                given.q, given.cache, given.tables, given.seen, out, workspace[:-1000],
                scale=given.scale, window=window,
            )  # fmt: skip
    assert_as_good(got, lambda b: truth(b, window), given, spec.ERROR_FACTOR)


@pytest.mark.parametrize(("heads", "kv_heads", "d", "block", "dtype", "window"), CASES[:4])
def test_an_int8_cache(
    heads: int, kv_heads: int, d: int, block: int, dtype: torch.dtype, window: int
) -> None:
    """Judged like the others, on codes and scales that are given; in shares."""
    given = in_int8(
        batch(
            [(1, seen) for seen in SEEN], heads=heads, kv_heads=kv_heads, d=d, block=block,
            dtype=dtype, window=window,
        )
    )  # fmt: skip
    shape = shape_class(given.q, given.cache)
    table = {"paged_attention_decode": {shape: {"WAVES": 9, "MIN_TILES": 1}}}
    with tuning.using(table):
        got = triton.paged_attention_decode(
            given.q, given.cache, given.tables, given.seen,
            scale=given.scale, window=window, scales=given.scales,
        )  # fmt: skip
    assert torch.equal(got[0], torch.zeros_like(got[0]))
    assert_as_good(got, lambda b: truth(b, window), given, spec.ERROR_FACTOR)


def test_scales_beyond_2_to_the_31_elements() -> None:
    near, far = distant_int8(heads=2, kv_heads=2, d=64)
    got = triton.paged_attention_decode(
        far.q, far.cache, far.tables, far.seen, scale=far.scale, scales=far.scales
    )
    assert_as_good(got, lambda b: truth(b, 0), near, spec.ERROR_FACTOR)


def test_blocks_beyond_2_to_the_31_elements() -> None:
    """Number and stride of a block fit in 32 bits, their product doesn't."""
    near, far = distant(heads=2, kv_heads=2, d=64)
    got = triton.paged_attention_decode(far.q, far.cache, far.tables, far.seen, scale=far.scale)
    assert_as_good(got, lambda b: truth(b, 0), near, spec.ERROR_FACTOR)


def test_no_rows() -> None:
    given = batch([], heads=2, kv_heads=1, d=64)
    got = triton.paged_attention_decode(given.q, given.cache, given.tables, given.seen, scale=1.0)
    assert got.shape == (0, 2, 64)


def test_what_does_not_fit_is_refused() -> None:
    given = batch([(1, 3)], heads=2, kv_heads=1, d=64)
    with pytest.raises(ValueError, match="don't fit"):
        triton.paged_attention_decode(
            given.q.half(), given.cache, given.tables, given.seen, scale=1.0
        )
    with pytest.raises(ValueError, match="of an int8 cache"):
        triton.paged_attention_decode(
            given.q, given.cache, given.tables, given.seen, scale=1.0, scales=given.cache[..., 0]
        )
    with pytest.raises(ValueError, match="no power of two"):
        triton.paged_attention_decode(
            given.q, given.cache[:, :, :, :12], given.tables, given.seen, scale=1.0
        )
    with pytest.raises(ValueError, match="dense"):
        triton.paged_attention_decode(
            given.q, given.cache.transpose(3, 4).contiguous().transpose(3, 4),
            given.tables, given.seen, scale=1.0,
        )  # fmt: skip
