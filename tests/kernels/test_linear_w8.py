from __future__ import annotations

import pytest
import torch

from kernels.linear_w8 import reference, spec
from kernels.resolve import resolve

pytestmark = pytest.mark.interp

IMPLEMENTATIONS = [reference.linear_w8, resolve("linear_w8")]


@pytest.fixture(params=IMPLEMENTATIONS, ids=["reference", "resolved"])
def linear_w8(request: pytest.FixtureRequest) -> type:
    kind: type = request.param
    return kind


def weight(n_in: int, n_out: int) -> torch.Tensor:
    return torch.randn(n_out, n_in, generator=torch.Generator().manual_seed(n_in)) * 0.05


def activations(n: int, n_in: int) -> torch.Tensor:
    return torch.randn(n, n_in, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize(("n_in", "n_out"), spec.SHAPES)
def test_close_to_the_exact_product(linear_w8: type, n_in: int, n_out: int) -> None:
    w, x = weight(n_in, n_out), activations(9, n_in)
    got, want = linear_w8(*spec.quantise(w))(x), x @ w.T
    error = (got - want).norm(dim=1) / want.norm(dim=1)
    assert error.max() < spec.REL_ERROR


@pytest.mark.parametrize(("n_in", "n_out"), spec.SHAPES)
def test_bit_identical_alone_and_in_every_batch(linear_w8: type, n_in: int, n_out: int) -> None:
    linear = linear_w8(*spec.quantise(weight(n_in, n_out)))
    x = activations(40, n_in)
    x[7] *= 400.0  # an outlier must not touch its neighbours
    x[11] *= 1e-6
    full = linear(x)
    for n in (1, 2, 31) if linear_w8 is reference.linear_w8 else range(1, 33):
        for first in (0, 7):
            assert torch.equal(linear(x[first : first + n]), full[first : first + n]), (n, first)


def test_bias_and_residual(linear_w8: type) -> None:
    linear = linear_w8(*spec.quantise(weight(64, 96)))
    x, bias, residual = activations(3, 64), torch.randn(96), torch.randn(3, 96)
    assert torch.allclose(linear(x, bias), linear(x) + bias, atol=1e-5)
    want = residual + linear(x)
    linear.add_to(residual, x)
    assert torch.allclose(residual, want, atol=1e-5)


def test_zero_rows_and_zero_weights(linear_w8: type) -> None:
    w = weight(64, 96)
    w[3] = 0.0
    linear = linear_w8(*spec.quantise(w))
    x = activations(2, 64)
    x[1] = 0.0
    y = linear(x)
    assert torch.isfinite(y).all()
    assert y[0, 3] == 0
    assert (y[1] == 0).all()


def test_quantise_is_symmetric_and_bounded() -> None:
    w = weight(64, 96)
    q, scale = spec.quantise(w)
    assert q.dtype is torch.int8
    assert int(q.abs().max()) == 127
    assert ((q * scale[:, None]) - w).abs().max() <= scale.max() / 2 + 1e-6


def test_the_two_implementations_agree() -> None:
    """They round activations in slightly different steps; both stay within the stated error."""
    w, x = spec.quantise(weight(576, 960)), activations(5, 576)
    a, b = (kind(*w)(x) for kind in IMPLEMENTATIONS)
    assert ((a - b).norm(dim=1) / a.norm(dim=1)).max() < spec.REL_ERROR
