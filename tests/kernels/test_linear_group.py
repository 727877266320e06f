"""Products with grouped codes: against PyTorch, alone and in company, on every instruction set."""

from __future__ import annotations

import ctypes
import time

import pytest
import torch

from kernels import build
from kernels.linear_group import gpu, spec
from kernels.linear_group.cpu import Arena, PackedLinear
from kernels.linear_group.reference import linear_group
from tests.support import native

pytestmark = pytest.mark.interp

FORMATS = ((4, False), (4, True), (5, False), (5, True), (8, False))


@pytest.fixture(scope="module", params=build.usable_levels())
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return native.library(request.param)


def codes(n_in: int, n_out: int, bits: int, shifted: bool) -> spec.Codes:
    generator = torch.Generator().manual_seed(n_in + bits)
    shape = (n_out, n_in // spec.GROUP)
    values = torch.randint(0, 2**bits, (n_out, n_in), generator=generator, dtype=torch.uint8)
    scale = (torch.rand(shape, generator=generator) * 0.01 + 0.001).half()
    shift = (torch.randn(shape, generator=generator) * 0.05).half() if shifted else None
    return spec.Codes(bits, values, scale, shift)


def activations(n: int, n_in: int) -> torch.Tensor:
    x = torch.randn(n, n_in, generator=torch.Generator().manual_seed(n))
    x[1::3] *= 1e4  # outliers must not touch their neighbours
    x[2, 5] = -3e5
    x[3] = 0.0
    return x


@pytest.mark.parametrize(("bits", "shifted"), FORMATS)
@pytest.mark.parametrize(("n_in", "n_out"), spec.SHAPES)
def test_equals_the_reference(
    library: ctypes.CDLL, n_in: int, n_out: int, bits: int, shifted: bool
) -> None:
    w, x = codes(n_in, n_out, bits, shifted), activations(13, n_in)
    got, want = PackedLinear(w, Arena(library))(x), linear_group(x, w)
    assert ((got - want).norm(dim=1) <= 1e-5 * want.norm(dim=1)).all()
    assert (got[3] == 0).all()


@pytest.mark.parametrize(("n_in", "n_out"), spec.SHAPES)
def test_close_to_the_exact_product(n_in: int, n_out: int) -> None:
    w = spec.quantise(torch.randn(n_out, n_in) * 0.05)
    x = torch.randn(9, n_in)
    want = x @ w.dense().T
    error = (PackedLinear(w, Arena(native.library()))(x) - want).norm(dim=1) / want.norm(dim=1)
    assert error.max() < spec.REL_ERROR


@pytest.mark.parametrize(("bits", "shifted"), FORMATS)
def test_bit_identical_alone_in_every_batch_and_on_every_level(bits: int, shifted: bool) -> None:
    w, x = codes(576, 200, bits, shifted), activations(40, 576)
    linears = [PackedLinear(w, Arena(native.library(level))) for level in build.usable_levels()]
    full = linears[0](x)
    for linear in linears:
        for n in (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 31, 32, 40):
            assert torch.equal(linear(x[:n]), full[:n]), n
            assert torch.equal(linear(x[-n:]), full[-n:]), n


@pytest.mark.parametrize(("bits", "shifted"), FORMATS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_largest_sums_are_exact(library: ctypes.CDLL, n: int, bits: int, shifted: bool) -> None:
    """Every code at its largest and every input at 127 or -127: sums of 16 bits must hold them."""
    w = codes(64, 40, bits, shifted)
    w.codes.fill_(2**bits - 1)
    x = torch.full((n, 64), 3.0)
    x[:, 32:] = -2.0
    got, want = PackedLinear(w, Arena(library))(x), linear_group(x, w)
    assert ((got - want).norm(dim=1) <= 1e-5 * want.norm(dim=1)).all()


@pytest.mark.parametrize("threads", [2, 3])
def test_bit_identical_with_any_number_of_threads(library: ctypes.CDLL, threads: int) -> None:
    """Loops follow each other faster than workers come, or after they have gone to sleep."""
    library.pool_new.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(library.pool_new(threads))
    for n_out in (40, 200, 2100):
        w, x = codes(64, n_out, 4, False), activations(4, 64)
        linear = PackedLinear(w, Arena(library))
        want = linear(x)
        for call in range(100):
            y = torch.full((4, n_out), torch.nan)
            library.linear_group_run(
                ctypes.byref(linear.weight), ctypes.c_void_p(x.data_ptr()), 4, None,
                ctypes.c_void_p(y.data_ptr()), pool,
            )  # fmt: skip
            assert torch.equal(y, want), call
            if call % 50 == 49:
                time.sleep(0.002)
    library.pool_free(pool)


def test_bias(library: ctypes.CDLL) -> None:
    w, x, bias = codes(64, 40, 4, True), activations(5, 64), torch.randn(40)
    linear = PackedLinear(w, Arena(library))
    assert torch.equal(linear(x, bias), linear(x) + bias)


def test_a_width_that_is_no_multiple_of_a_group_is_refused() -> None:
    w = spec.Codes(8, torch.zeros(16, 40, dtype=torch.uint8), torch.ones(16, 1).half(), None)
    arena = Arena(native.library())
    with pytest.raises(ValueError, match="multiple of 32"):
        PackedLinear(w, arena)


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_quantise_is_nearest(bits: int) -> None:
    w = torch.randn(24, 128) * 0.1
    w[3] = 0.0
    made = spec.quantise(w, bits)
    step = made.scale.float().repeat_interleave(spec.GROUP, 1)
    assert ((made.dense() - w).abs() <= step * 0.5 + 1e-3 * w.abs()).all()
    assert (made.dense()[3] == 0).all()


@pytest.mark.parametrize(("bits", "shifted"), [*FORMATS, (8, True)])
def test_a_gpus_layout_keeps_every_code(bits: int, shifted: bool) -> None:
    w = codes(288, 37, bits, shifted)
    packed = gpu.pack(w, "cpu")
    got = packed.codes()
    assert torch.equal(got.codes, w.codes)
    assert torch.equal(got.scale, w.scale)
    assert (got.shift is None) == (w.shift is None)
    assert torch.equal(packed.dense(torch.float32), w.dense())
    per_group = 4 * bits + (4 if shifted else 2)
    assert packed.n_bytes == 37 * 9 * per_group


def test_a_gpus_layout_refuses_what_it_cannot_hold() -> None:
    for bits, n_in, why in ((8, 40, "multiple of 32"), (6, 64, "4, 5 or 8 bits")):
        w = spec.Codes(
            bits, torch.zeros(16, n_in, dtype=torch.uint8), torch.ones(16, 1).half(), None
        )
        with pytest.raises(ValueError, match=why):
            gpu.pack(w, "cpu")
