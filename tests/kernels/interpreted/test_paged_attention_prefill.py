from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels import tuning
from kernels.paged_attention_decode import spec
from kernels.paged_attention_prefill import reference, triton
from tests.kernels.interpreted.paged import (
    Batch,
    assert_as_good,
    batch,
    distant,
    distant_int8,
    in_int8,
)

pytestmark = pytest.mark.interp

MIXED = ((1, 40), (19, 19), (1, 1), (0, 0), (7, 90), (1, 0))
"""Decode rows, a whole prompt, an empty row, a chunk behind a prefix, a padding row."""
CASES = [
    # heads, kv_heads, d, block, dtype, window
    (4, 1, 64, 16, torch.float16, 0),
    (7, 1, 80, 32, torch.float32, 0),
    (2, 1, 96, 16, torch.float32, 23),
    (1, 1, 128, 32, torch.bfloat16, 0),
    (3, 1, 128, 16, torch.float16, 16),
    (6, 2, 64, 16, torch.bfloat16, 1),
    (5, 1, 33, 16, torch.float32, 0),
]


def truth(given: Batch, window: int = 0) -> Tensor:
    longest = int(given.starts.diff().max())
    return reference.paged_attention_prefill(
        given.q, given.cache, given.tables, given.starts, given.seen,
        scale=given.scale, window=window, max_q=longest, scales=given.scales,
    )  # fmt: skip


@pytest.mark.parametrize(("heads", "kv_heads", "d", "block", "dtype", "window"), CASES)
def test_a_mixed_batch_matches_the_reference(
    heads: int, kv_heads: int, d: int, block: int, dtype: torch.dtype, window: int
) -> None:
    given = batch(
        MIXED, heads=heads, kv_heads=kv_heads, d=d, block=block, dtype=dtype, window=window
    )
    n = given.q.shape[0]
    out = torch.full((n + 2, heads, d + 3), math.nan, dtype=dtype)[..., :d]
    shape = f"d{d}x{8 * given.cache.element_size()} many"
    with tuning.using({"paged_attention_prefill": {shape: {"M": 64, "TILE": 64}}}):
        got = triton.paged_attention_prefill(
            torch.cat((given.q, given.q[:2])), given.cache, given.tables, given.starts, given.seen,
            scale=given.scale, window=window, max_q=20, out=out,
        )  # fmt: skip
    assert got is out
    assert torch.isnan(got[n:]).all(), "queries that no row owns"
    assert torch.equal(got[n - 1], torch.zeros(heads, d, dtype=dtype)), "a row that sees nothing"
    assert_as_good(got[:n], lambda b: truth(b, window), given, spec.ERROR_FACTOR)


@pytest.mark.parametrize(("heads", "kv_heads", "d", "block", "dtype", "window"), CASES[:4])
def test_a_mixed_batch_over_int8(
    heads: int, kv_heads: int, d: int, block: int, dtype: torch.dtype, window: int
) -> None:
    given = in_int8(
        batch(MIXED, heads=heads, kv_heads=kv_heads, d=d, block=block, dtype=dtype, window=window)
    )
    got = triton.paged_attention_prefill(
        given.q, given.cache, given.tables, given.starts, given.seen,
        scale=given.scale, window=window, max_q=20, scales=given.scales,
    )  # fmt: skip
    assert torch.equal(got[-1], torch.zeros(heads, d, dtype=dtype)), "a row that sees nothing"
    assert_as_good(got, lambda b: truth(b, window), given, spec.ERROR_FACTOR)


@pytest.mark.parametrize(
    ("d", "block", "dtype", "tile"), [(64, 16, torch.float16, 64), (80, 32, torch.float32, 16)]
)
def test_decode_rows_only(d: int, block: int, dtype: torch.dtype, tile: int) -> None:
    """A tile may hold several blocks, or be a part of one."""
    given = batch([(1, 70), (1, 16)], heads=4, kv_heads=2, d=d, block=block, dtype=dtype)
    args = (given.q, given.cache, given.tables, given.starts, given.seen)
    got = triton.paged_attention_prefill(*args, scale=given.scale, max_q=1)
    call = triton.call(*args, got, scale=given.scale, max_q=1)
    assert (call.arguments["M"], call.arguments["TILE"]) == (16, tile)
    assert_as_good(got, truth, given, spec.ERROR_FACTOR)


@pytest.mark.parametrize("window", [0, 9])
def test_a_prompt_may_be_cut_anywhere(window: int) -> None:
    whole = batch([(40, 40)], heads=2, kv_heads=1, d=64)
    want = truth(whole, window)
    for first, last in ((0, 15), (15, 33), (33, 40)):
        got = triton.paged_attention_prefill(
            whole.q[first:last], whole.cache, whole.tables,
            torch.tensor([0, last - first], dtype=torch.int32),
            torch.tensor([last], dtype=torch.int32),
            scale=whole.scale, window=window, max_q=last - first,
        )  # fmt: skip
        assert torch.allclose(got, want[first:last], rtol=1e-4, atol=1e-5)


def test_blocks_beyond_2_to_the_31_elements() -> None:
    near, far = distant(heads=2, kv_heads=2, d=64)
    got = triton.paged_attention_prefill(
        far.q, far.cache, far.tables, far.starts, far.seen, scale=far.scale, max_q=1
    )
    assert_as_good(got, truth, near, spec.ERROR_FACTOR)


def test_scales_beyond_2_to_the_31_elements() -> None:
    near, far = distant_int8(heads=2, kv_heads=2, d=64)
    got = triton.paged_attention_prefill(
        far.q, far.cache, far.tables, far.starts, far.seen,
        scale=far.scale, max_q=1, scales=far.scales,
    )  # fmt: skip
    assert_as_good(got, truth, near, spec.ERROR_FACTOR)


def test_no_rows() -> None:
    given = batch([], heads=2, kv_heads=1, d=64)
    got = triton.paged_attention_prefill(
        given.q, given.cache, given.tables, given.starts, given.seen, scale=1.0, max_q=0
    )
    assert got.shape == (0, 2, 64)


def test_the_reference_refuses_rows_longer_than_it_was_told() -> None:
    given = batch([(3, 3)], heads=2, kv_heads=1, d=64)
    with pytest.raises(ValueError, match="3 queries, max_q is 2"):
        reference.paged_attention_prefill(
            given.q, given.cache, given.tables, given.starts, given.seen, scale=1.0, max_q=2
        )
