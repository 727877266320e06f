from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.paged_attention import spec
from kernels.paged_attention.reference import plan, write_kv
from kernels.resolve import resolve

pytestmark = pytest.mark.interp

BLOCK = 16


def filled(spans: list[tuple[int, int]], kv_heads: int, d: int) -> tuple[Tensor, list, list]:
    """A cache of requests (start, n) in shuffled blocks, and each one's dense keys and values."""
    generator = torch.Generator().manual_seed(3)
    n_blocks = sum(-(-(start + n) // BLOCK) for start, n in spans) + 3
    cache = torch.full((2, n_blocks, kv_heads, BLOCK, d), 9.0)  # stale rows must not be seen
    free = list(range(n_blocks))
    random.Random(1).shuffle(free)
    tables, dense = [], []
    for start, n in spans:
        table = [free.pop() for _ in range(-(-(start + n) // BLOCK))]
        kv = torch.randn(start + n, 2 * kv_heads, d, generator=generator)
        where = plan(
            [(0, start + n, table)], kv_heads=kv_heads, block_size=BLOCK, n_blocks=n_blocks
        )
        write_kv(cache, kv, where.write)
        tables.append(table)
        dense.append(kv)
    return cache, tables, dense


@pytest.mark.parametrize("window", [0, 1, 50, 130])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "d"), [(9, 3, 64), (14, 2, 64), (4, 4, 32), (8, 1, 16)]
)
def test_matches_dense_attention(heads: int, kv_heads: int, d: int, window: int) -> None:
    spans = [(0, 1), (15, 1), (16, 1), (0, 5), (200, 1), (63, 2), (100, 160), (130, 1), (0, 16)]
    cache, tables, dense = filled(spans, kv_heads, d)
    q = torch.randn(sum(n for _, n in spans), heads, d)
    steps = plan(
        [(start, n, table) for (start, n), table in zip(spans, tables, strict=True)],
        kv_heads=kv_heads, block_size=BLOCK, n_blocks=cache.shape[1], window=window,
    )  # fmt: skip
    got = resolve("paged_attention")(q / math.sqrt(d), cache, steps)
    token = 0
    for (start, n), kv in zip(spans, dense, strict=True):
        keys, values = kv[:, :kv_heads].transpose(0, 1), kv[:, kv_heads:].transpose(0, 1)
        at, own = torch.arange(start + n), torch.arange(start, start + n)[:, None]
        seen = (at <= own) & (at > own - (window or start + n))
        want = (
            F.scaled_dot_product_attention(
                q[token : token + n].transpose(0, 1)[None],
                keys.repeat_interleave(heads // kv_heads, 0)[None],
                values.repeat_interleave(heads // kv_heads, 0)[None],
                attn_mask=seen,
            )[0]
            .transpose(0, 1)
            .reshape(n, heads * d)
        )
        assert torch.allclose(got[token : token + n], want, rtol=spec.RTOL, atol=spec.ATOL)
        token += n


@pytest.mark.parametrize(
    ("heads", "kv_heads", "window"), [(9, 3, 0), (14, 2, 0), (12, 2, 0), (4, 4, 0), (14, 2, 70)]
)
def test_bit_identical_however_it_is_cut(heads: int, kv_heads: int, window: int) -> None:
    d, n = 64, 300
    cache, (table,), _ = filled([(0, n)], kv_heads, d)
    q = torch.randn(n, heads, d)
    attend = resolve("paged_attention")

    def run(cuts: list[int]) -> Tensor:
        spans = [(a, b - a, table) for a, b in pairwise(cuts)]
        steps = plan(
            spans, kv_heads=kv_heads, block_size=BLOCK, n_blocks=cache.shape[1], window=window
        )
        out: Tensor = attend(q[cuts[0] : cuts[-1]], cache, steps)
        return out

    whole = run([0, n])
    assert torch.equal(run([0, 1, 2, 4, 9, 64, 65, 128, 200, 299, n]), whole)
    assert torch.equal(run(list(range(n + 1))), whole)
    for i in (0, 63, 64, 127, 128, 255, 299):
        assert torch.equal(run([i, i + 1])[0], whole[i]), i


def test_write_goes_where_the_table_says() -> None:
    cache = torch.zeros(2, 4, 2, BLOCK, 8)
    kv = torch.randn(3, 4, 8)
    steps = plan([(15, 3, [2, 0])], kv_heads=2, block_size=BLOCK, n_blocks=4)
    write_kv(cache, kv, steps.write)
    for i, (block, offset) in enumerate([(2, 15), (0, 0), (0, 1)]):
        assert torch.equal(cache[0, block, :, offset], kv[i, :2])
        assert torch.equal(cache[1, block, :, offset], kv[i, 2:])
    assert int((cache != 0).any(-1).sum()) == 12
