from __future__ import annotations

import pytest
import torch

from kernels.kv_copy import reference, triton

pytestmark = pytest.mark.interp


@pytest.mark.parametrize(
    ("layers", "kv_heads", "d", "block", "dtype"),
    [
        (2, 1, 64, 16, torch.float16),
        (1, 2, 80, 32, torch.bfloat16),
        (1, 1, 33, 16, torch.float32),
    ],
)
def test_matches_the_reference(
    layers: int, kv_heads: int, d: int, block: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(5)
    wide = torch.randn(layers, 2, 6, kv_heads, block, d + 7, generator=generator).to(dtype)
    cache = wide[..., :d]
    src, dst = torch.tensor([0, 0, 4]), torch.tensor([5, 2, 3])
    n_rows = torch.tensor([block - 1, block, 0])
    want, rest = cache.clone(), wide[..., d:].clone()
    reference.kv_copy(want, src, dst, n_rows)
    assert not torch.equal(want, cache)
    triton.kv_copy(cache, src, dst, n_rows)
    assert torch.equal(cache, want)
    assert torch.equal(wide[..., d:], rest)


def test_scales_go_with_their_codes() -> None:
    generator = torch.Generator().manual_seed(5)
    cache = torch.randint(-127, 128, (2, 2, 6, 2, 16, 64), generator=generator, dtype=torch.int8)
    scales = torch.randn(2, 2, 6, 16, 2, generator=generator).transpose(3, 4)
    src, dst, n_rows = torch.tensor([0, 4]), torch.tensor([5, 3]), torch.tensor([11, 0])
    want, its_scales = cache.clone(), scales.clone()
    reference.kv_copy(want, src, dst, n_rows, its_scales)
    assert torch.equal(its_scales[:, :, 5, :, :11], scales[:, :, 0, :, :11])
    triton.kv_copy(cache, src, dst, n_rows, scales)
    assert torch.equal(cache, want)
    assert torch.equal(scales, its_scales)


def test_no_pairs() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    triton.kv_copy(torch.zeros(1, 2, 2, 1, 16, 64), none, none, none)


def test_blocks_beyond_2_to_the_31_elements() -> None:
    """The last layer starts at 2^31 + 2^12, its block 1 another 2^31 on: strides fit in 32 bits."""
    layer, block = 2**30 + 2**11, 2**31 - 2**12
    storage = torch.empty(2 * layer + block + 2 * 1024, dtype=torch.int8)
    cache = storage.as_strided((3, 2, 2, 1, 16, 64), (layer, 1024, block, 1024, 64, 1))
    cache[2, :, 0], cache[2, :, 1] = 3, 0
    triton.kv_copy(cache, torch.tensor([0]), torch.tensor([1]), torch.tensor([16]))
    assert int(cache[2, :, 1].sum()) == 3 * 2 * 16 * 64


def test_scales_beyond_2_to_the_31_elements() -> None:
    stride = 2**31 + 64
    storage = torch.empty(stride + 64)
    scales = storage.as_strided((1, 2, 2, 1, 16), (64, 16, stride, 16, 1))
    scales[:, :, 0], scales[:, :, 1] = 3.0, 0.0
    cache = torch.zeros(1, 2, 2, 1, 16, 64, dtype=torch.int8)
    one = torch.tensor([1])
    triton.kv_copy(cache, one - 1, one, torch.tensor([11]), scales)
    assert (scales[:, :, 1, :, :11] == 3.0).all()
    assert not scales[:, :, 1, :, 11:].any()


def test_what_does_not_fit_is_refused() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    cache = torch.zeros(1, 2, 2, 1, 16, 128)
    with pytest.raises(ValueError, match="2 lengths"):
        triton.kv_copy(cache, one, one, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="dense"):
        triton.kv_copy(cache[..., ::2], one, one, one)
