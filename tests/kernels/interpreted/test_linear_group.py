"""Grouped-code products in Triton: every format, odd shapes, split sums, poisoned padding."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import tuning
from kernels.linear_group import gpu, reference, triton
from kernels.linear_group.spec import Codes, quantise
from tests.support.precision import assert_as_good

pytestmark = pytest.mark.interp

FORMATS = ((4, False), (4, True), (5, False), (5, True), (8, False), (8, True))


def codes(n_in: int, n_out: int, bits: int, shifted: bool) -> Codes:
    generator = torch.Generator().manual_seed(n_in + bits)
    shape = (n_out, n_in // 32)
    values = torch.randint(0, 2**bits, (n_out, n_in), generator=generator, dtype=torch.uint8)
    scale = (torch.rand(shape, generator=generator) * 0.01 + 0.001).half()
    shift = (torch.randn(shape, generator=generator) * 0.05).half() if shifted else None
    return Codes(bits, values, scale, shift)


def rows(n: int, n_in: int, dtype: torch.dtype) -> Tensor:
    """[n, n_in] inside a wider tensor of NaN."""
    wide = torch.full((n, n_in + 16), math.nan, dtype=dtype)
    wide[:, :n_in] = torch.randn(n, n_in, generator=torch.Generator().manual_seed(n))
    return wide[:, :n_in]


def judged(got: Tensor, x: Tensor, w: Codes, bias: Tensor | None) -> None:
    dense = w.dense()
    exact = F.linear(x.double(), dense.double(), None if bias is None else bias.double())
    plain = F.linear(x, dense.to(x.dtype), None if bias is None else bias.to(x.dtype))
    assert_as_good(got, plain, exact)


@pytest.mark.parametrize(("bits", "shifted"), FORMATS)
def test_every_format(bits: int, shifted: bool) -> None:
    w, x, bias = codes(608, 70, bits, shifted), rows(3, 608, torch.float16), torch.randn(70)
    judged(triton.linear_group(x, gpu.pack(w, "cpu"), bias), x, w, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n", "n_in", "n_out"), [(1, 32, 1), (17, 288, 130), (70, 96, 40)])
def test_every_shape_class(n: int, n_in: int, n_out: int, dtype: torch.dtype) -> None:
    w, x = codes(n_in, n_out, 4, False), rows(n, n_in, dtype)
    judged(triton.linear_group(x, gpu.pack(w, "cpu")), x, w, None)


@pytest.mark.parametrize("bits", [4, 8])
def test_split_sums(bits: int) -> None:
    """The last share is shorter than the others; a row is the same alone and in company."""
    w, x, bias = codes(1056, 48, bits, True), rows(5, 1056, torch.float16), torch.randn(48)
    packed = gpu.pack(w, "cpu")
    table = {"linear_group": {f"w{bits}x16": {"WAVES": 8, "MIN_STEPS": 1, "GROUPS": 8}}}
    with tuning.using(table):
        launches = triton.calls(x, packed, bias, torch.empty(5, 48, dtype=x.dtype))
        wide = torch.zeros(5, 50, dtype=x.dtype)
        got = triton.linear_group(x, packed, bias, wide[:, 1:-1])
        alone = triton.linear_group(x[2:3], packed, bias)
    assert [call.grid for call in launches] == [(1, 2, 3), (1,)]
    judged(got, x, w, bias)
    assert torch.equal(alone[0], got[2])
    assert torch.equal(got, wide[:, 1:-1])
    assert not wide[:, 0].any()
    assert not wide[:, -1].any()


def test_rows_beyond_2_to_the_31_elements() -> None:
    """Of activations and of results, whole and in parts."""
    w, stride = gpu.pack(codes(96, 40, 4, True), "cpu"), 2**30 + 16

    def far(width: int) -> Tensor:
        wide = torch.empty(2 * stride + width, dtype=torch.float16)
        return wide.as_strided((3, width), (stride, 1))

    x, out = far(96).copy_(rows(3, 96, torch.float16)), far(40)
    want = triton.linear_group(x.clone(memory_format=torch.contiguous_format), w)
    for tiles in ({}, {"WAVES": 8, "MIN_STEPS": 1, "GROUPS": 1}):
        with tuning.using({"linear_group": {"w4x16": tiles}}):
            got = triton.linear_group(x, w, out=out.zero_())
        assert got is out
        assert torch.allclose(got, want, rtol=1e-3, atol=1e-3)


def test_no_rows_and_wrong_widths() -> None:
    packed = gpu.pack(codes(64, 40, 5, True), "cpu")
    assert triton.linear_group(torch.empty(0, 64), packed).shape == (0, 40)
    with pytest.raises(ValueError, match=r"x must be \[2, 64\]"):
        triton.linear_group(torch.empty(2, 96), packed)


def test_a_rounded_model_weight() -> None:
    """What the engine packs: the reference for these codes and the kernel agree."""
    weight = torch.randn(33, 128, generator=torch.Generator().manual_seed(2)) * 0.05
    packed, x = gpu.pack(quantise(weight, 8), "cpu"), rows(2, 128, torch.float32)
    wide = torch.zeros(2, 40)
    got = triton.linear_group(x, packed, out=wide[:, 7:])
    assert torch.equal(got, wide[:, 7:])
    assert not wide[:, :7].any()
    assert torch.allclose(got, reference.linear_group(x, packed), rtol=1e-5, atol=1e-5)
