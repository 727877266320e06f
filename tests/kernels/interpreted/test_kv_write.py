from __future__ import annotations

import math

import pytest
import torch

from kernels.kv_write import reference, triton

pytestmark = pytest.mark.interp

shapes = pytest.mark.parametrize(
    ("n", "kv_heads", "d", "block", "dtype"),
    [
        (1, 1, 64, 16, torch.float16),
        (19, 2, 80, 32, torch.float32),
        (8, 1, 128, 16, torch.bfloat16),
        (3, 3, 33, 16, torch.float32),
        (0, 1, 64, 16, torch.float32),
    ],
)


@shapes
def test_matches_the_reference(
    n: int, kv_heads: int, d: int, block: int, dtype: torch.dtype
) -> None:
    """k and v lie in one projection, the cache is a layer among others; some slots are skipped."""
    generator = torch.Generator().manual_seed(5)
    projection = torch.randn(n, 3 * kv_heads, d, generator=generator).to(dtype)
    k, v = projection[:, kv_heads : 2 * kv_heads], projection[:, 2 * kv_heads :]
    slots = torch.randperm(4 * block, generator=generator)[:n]
    slots[2::3] = -1
    layers = torch.full((2, 2, 4, kv_heads, block, d), math.nan, dtype=dtype)
    want = layers.clone()
    reference.kv_write(k, v, want[1], slots)
    triton.kv_write(k, v, layers[1], slots)
    assert torch.equal(layers.nan_to_num(-9.0), want.nan_to_num(-9.0))
    stored = int((slots >= 0).sum())
    assert int(torch.isfinite(layers).sum()) == stored * 2 * kv_heads * d


@shapes
def test_codes_and_scales_are_the_references(
    n: int, kv_heads: int, d: int, block: int, dtype: torch.dtype
) -> None:
    """To the bit; scales have heads and slots swapped in memory. A row of zeros stays zeros."""
    generator = torch.Generator().manual_seed(6)
    projection = (torch.randn(n, 3 * kv_heads, d, generator=generator) * 3).to(dtype)
    projection[1:2] = 0.0
    k, v = projection[:, kv_heads : 2 * kv_heads], projection[:, 2 * kv_heads :]
    slots = torch.randperm(4 * block, generator=generator)[:n]
    slots[2::3] = -1
    cache = torch.full((2, 4, kv_heads, block, d), -128, dtype=torch.int8)
    scales = torch.full((2, 4, block, kv_heads), math.nan).transpose(2, 3)
    want, its_scales = cache.clone(), scales.clone()
    reference.kv_write(k, v, want, slots, its_scales)
    triton.kv_write(k, v, cache, slots, scales)
    assert torch.equal(cache, want)
    assert torch.equal(scales.nan_to_num(-9.0), its_scales.nan_to_num(-9.0))
    for at, slot in enumerate(slots.tolist()):
        if slot >= 0:
            held = cache[:, slot // block, :, slot % block].float()
            by = scales[:, slot // block, :, slot % block, None]
            given = torch.stack((k[at], v[at])).float()
            assert ((held * by - given).abs() <= by * 0.5001).all()
            assert (held.abs().amax(-1, keepdim=True) == torch.where(by > 0, 127, 0)).all()


def test_rounds_to_the_cache() -> None:
    k, v = torch.randn(2, 1, 64), torch.randn(2, 1, 64)
    cache = torch.zeros(2, 1, 1, 16, 64, dtype=torch.float16)
    triton.kv_write(k, v, cache, torch.tensor([3, 0]))
    assert torch.equal(cache[0, 0, 0, 3], k[0, 0].half())
    assert torch.equal(cache[1, 0, 0, 0], v[1, 0].half())


def test_slots_beyond_2_to_the_31_elements() -> None:
    """Block 3 starts at 3 GiB: of the cache only a page is touched."""
    stride = 2**30
    storage = torch.empty(3 * stride + 16 * 128, dtype=torch.int8)
    cache = storage.as_strided((2, 4, 1, 16, 64), (64, stride, 64, 128, 1))
    k, v = torch.ones(1, 1, 64, dtype=torch.int8), torch.full((1, 1, 64), 2, dtype=torch.int8)
    triton.kv_write(k, v, cache, torch.tensor([48]))
    assert torch.equal(cache[:, 3, 0, 0].sum(-1), torch.tensor([64, 128]))


def test_scales_beyond_2_to_the_31_elements() -> None:
    stride = 2**30
    shape = (2, 4, 1, 16)
    storage = torch.empty(3 * stride + 32)
    scales = storage.as_strided(shape, (16, stride, 16, 1))
    cache = torch.zeros(*shape, 64, dtype=torch.int8)
    k, v = torch.full((1, 1, 64), 127.0), torch.full((1, 1, 64), 254.0)
    triton.kv_write(k, v, cache, torch.tensor([49]), scales)
    assert scales[:, 3, 0, 1].tolist() == [1.0, 2.0]
    assert (cache[:, 3, 0, 1] == 127).all()
    assert int(cache.bool().sum()) == 2 * 64


def test_what_does_not_fit_is_refused() -> None:
    k, cache, slots = torch.zeros(2, 1, 64), torch.zeros(2, 1, 1, 16, 64), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="don't fit"):
        triton.kv_write(k, k[:, :, :32], cache, slots)
    with pytest.raises(ValueError, match="slots for 2 tokens"):
        triton.kv_write(k, k, cache, slots[:1])
    with pytest.raises(ValueError, match="dense"):
        triton.kv_write(torch.zeros(2, 1, 128)[..., ::2], k, cache, slots)
    with pytest.raises(ValueError, match="of an int8 cache"):
        triton.kv_write(k, k, cache, slots, cache[..., 0])
    with pytest.raises(ValueError, match="don't fit the cache"):
        triton.kv_write(k, k, cache.to(torch.int8), slots, cache[..., :8, 0])
