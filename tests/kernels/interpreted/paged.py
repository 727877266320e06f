"""Ragged batches over a paged cache whose every unread number is NaN, and how errors are judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.kv_write.reference import quantise


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows (queries, positions seen) in shuffled blocks. The last block is the dummy: all NaN."""

    q: Tensor
    cache: Tensor
    tables: Tensor
    starts: Tensor
    seen: Tensor
    scale: float
    scales: Tensor | None = None

    def wide(self) -> Batch:
        """The same numbers in fp64; an int8 cache's codes and scales are what they are."""
        cache = self.cache if self.scales is not None else self.cache.double()
        return replace(self, q=self.q.double(), cache=cache)


def in_int8(given: Batch) -> Batch:
    """With the cache's numbers in 8 bits. What was NaN has codes of -128 and NaN for a scale;
    scales lie as numbers of a wider tensor. Every 7th value is too small for an fp16 scale."""
    _sides, n_blocks, kv_heads, block, d = given.cache.shape
    shrink = torch.where(torch.arange(block) % 7 == 3, 1e-7, 1.0)
    cache = given.cache.float()
    cache[1] *= shrink[:, None]
    codes, scales = quantise(cache)
    wide = torch.full((2, n_blocks, block, 2, kv_heads), math.nan)
    kept = wide[..., 1, :].transpose(2, 3)
    kept.copy_(scales)
    room = torch.full((2, n_blocks, block, kv_heads, d), -128, dtype=torch.int8).transpose(2, 3)
    room.copy_(torch.where(codes.isnan(), -128, codes))
    return replace(given, cache=room, scales=kept)


def batch(
    rows: Sequence[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    d: int,
    block: int = 16,
    dtype: torch.dtype = torch.float32,
    window: int = 0,
    strided: bool = True,
) -> Batch:
    """rows: (n queries, positions seen). window: positions that no query sees are NaN as well.

    strided: queries are part of a wider projection, the cache one layer among others whose heads
    and slots are swapped in memory.
    """
    generator = torch.Generator().manual_seed(7)
    counts = [-(-seen // block) for _, seen in rows]
    n_blocks = sum(counts) + 1
    shape = (n_blocks, kv_heads, block, d)
    if strided:
        big = torch.full((2, 3, n_blocks, block, kv_heads, d), math.nan, dtype=dtype)
        cache = big[:, 1].transpose(2, 3)
    else:
        cache = torch.full((2, *shape), math.nan, dtype=dtype)
    order = torch.randperm(n_blocks - 1, generator=generator).int()
    tables = torch.full((len(rows), max(counts, default=0) + 2), n_blocks - 1, dtype=torch.int32)
    first = 0
    for row, ((n, seen), count) in enumerate(zip(rows, counts, strict=True)):
        tables[row, :count] = order[first : first + count]
        first += count
        low = max(seen - n + 1 - window, 0) if window else 0
        for at in range(low, seen):
            here = cache[:, int(tables[row, at // block]), :, at % block]
            here.copy_(torch.randn(here.shape, generator=generator))
    lengths = [n for n, _ in rows]
    total = sum(lengths)
    q = torch.randn(total, heads + 2, d, generator=generator).to(dtype)
    return Batch(
        q=q[:, 1:-1] if strided else q[:, 1:-1].contiguous(),
        cache=cache,
        tables=tables,
        starts=torch.tensor([0, *lengths]).cumsum(0).int(),
        seen=torch.tensor([seen for _, seen in rows], dtype=torch.int32),
        scale=1 / math.sqrt(d),
    )


def distant(*, heads: int, kv_heads: int, d: int) -> tuple[Batch, Batch]:
    """25 positions in a small cache, and the same in one whose block 2 starts at element 2^31 + 32.

    Of that one's 4 GB only the pages of the three blocks are ever touched.
    """
    block, stride = 16, 2**30 + 16
    size = kv_heads * block * d
    storage = torch.empty(2 * stride + 2 * size, dtype=torch.float16)
    cache = storage.as_strided((2, 3, kv_heads, block, d), (size, stride, block * d, d, 1))
    generator = torch.Generator().manual_seed(1)
    cache.copy_(torch.randn(cache.shape, generator=generator))
    tables = torch.tensor([[2, 1]], dtype=torch.int32)
    far = Batch(
        q=torch.randn(1, heads, d, generator=generator).half(),
        cache=cache,
        tables=tables,
        starts=torch.tensor([0, 1], dtype=torch.int32),
        seen=torch.tensor([25], dtype=torch.int32),
        scale=1 / math.sqrt(d),
    )
    near = cache.clone(memory_format=torch.contiguous_format)
    return Batch(far.q, near, tables, far.starts, far.seen, far.scale), far


def distant_int8(*, heads: int, kv_heads: int, d: int) -> tuple[Batch, Batch]:
    """The same in 8 bits: codes and scales of block 2 begin behind element 2^31."""
    near = in_int8(distant(heads=heads, kv_heads=kv_heads, d=d)[0])
    assert near.scales is not None
    block, stride = 16, 2**30 + 16
    codes = torch.empty(2 * stride + 2 * kv_heads * block * d, dtype=torch.int8)
    room = torch.empty(2 * stride + 2 * kv_heads * block)
    cache = codes.as_strided(near.cache.shape, (kv_heads * block * d, stride, block * d, d, 1))
    scales = room.as_strided(near.scales.shape, (kv_heads * block, stride, block, 1))
    return near, replace(near, cache=cache.copy_(near.cache), scales=scales.copy_(near.scales))


def assert_as_good(
    got: Tensor, want: Callable[[Batch], Tensor], given: Batch, factor: float
) -> None:
    """No error above `factor` times the reference's in the same precision, both against fp64."""
    truth = want(given.wide())
    own = (want(given).double() - truth).abs().max()
    error = (got.double() - truth).abs().max()
    assert torch.isfinite(got).all()
    assert error <= factor * own + 1e-7, f"{error:.3g} is off, the reference {own:.3g}"
