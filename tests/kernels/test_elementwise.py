"""rms_norm, rope and silu_mul against formulas written in another way, in odd shapes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.resolve import operations, resolve
from kernels.rms_norm import spec as norm_spec
from kernels.rope import spec as rope_spec
from kernels.silu_mul import spec as silu_spec

pytestmark = pytest.mark.interp


@pytest.mark.parametrize(("n", "d"), norm_spec.SHAPES)
def test_rms_norm(n: int, d: int) -> None:
    x, weight = torch.randn(n, d) * 3, torch.randn(d)
    got = resolve("rms_norm")(x, weight, 1e-5)
    want = F.rms_norm(x, (d,), weight, 1e-5)
    assert torch.allclose(got, want, rtol=norm_spec.RTOL, atol=norm_spec.ATOL)
    for i in range(n):
        assert torch.equal(resolve("rms_norm")(x[i : i + 1], weight, 1e-5)[0], got[i])


@pytest.mark.parametrize(("n", "f"), silu_spec.SHAPES)
def test_silu_mul(n: int, f: int) -> None:
    x = torch.randn(n, 2 * f) * 4
    want = x[:, :f] * torch.sigmoid(x[:, :f]) * x[:, f:]
    got = resolve("silu_mul")(x)
    assert torch.allclose(got, want, rtol=silu_spec.RTOL, atol=silu_spec.ATOL)


@pytest.mark.parametrize(("n", "heads", "d"), rope_spec.SHAPES)
def test_rope_is_a_rotation_of_pairs(n: int, heads: int, d: int) -> None:
    wide = torch.randn(n, heads + 2, d)
    x, rest, before = wide[:, :heads], wide[:, heads:].clone(), wide[:, :heads].clone()
    angle = torch.randn(n, 1, d // 2)
    resolve("rope")(x, torch.polar(torch.ones_like(angle), angle))
    even, odd = before[..., 0::2], before[..., 1::2]
    want_even = even * angle.cos() - odd * angle.sin()
    want_odd = even * angle.sin() + odd * angle.cos()
    assert torch.allclose(x[..., 0::2], want_even, rtol=rope_spec.RTOL, atol=rope_spec.ATOL)
    assert torch.allclose(x[..., 1::2], want_odd, rtol=rope_spec.RTOL, atol=rope_spec.ATOL)
    assert torch.equal(wide[:, heads:], rest)


def test_rope_at_turns_each_token_by_its_position() -> None:
    qkv = torch.randn(3, 7, 8)
    q, k, before = qkv[:, :4], qkv[:, 4:6], qkv.clone()
    turns = torch.polar(torch.ones(50, 4), torch.randn(50, 4))
    positions = torch.tensor([49, 0, 7])
    resolve("rope_at")(q, k, torch.view_as_real(turns).flatten(1), positions)
    for x, was in ((q, before[:, :4].clone()), (k, before[:, 4:6].clone())):
        resolve("rope")(was, turns[positions].unsqueeze(1))
        assert torch.allclose(x, was, rtol=rope_spec.RTOL, atol=rope_spec.ATOL)
    assert torch.equal(qkv[:, 6:], before[:, 6:])


def test_rms_norm_add_is_both_in_turn() -> None:
    x, residual, weight = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
    sum_ = x + residual
    got = resolve("rms_norm_add")(x, residual, weight, 1e-5)
    assert torch.equal(residual, sum_)
    assert torch.equal(got, resolve("rms_norm")(sum_, weight, 1e-5))


def test_every_operation_has_an_implementation() -> None:
    for op in operations():
        assert callable(resolve(op))
    with pytest.raises(KeyError):
        resolve("fft")
