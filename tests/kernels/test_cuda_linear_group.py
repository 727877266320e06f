"""Grouped codes in CUDA C++: the layout, and the kernels against PyTorch, emulated or on a GPU."""

from __future__ import annotations

import pytest
import torch

from kernels import cuda_build
from kernels.cuda_build import Kernels
from kernels.linear_group import cuda, spec
from kernels.linear_group.reference import linear_group
from tests.support.cuda import ON
from tests.support.cuda import kernels as kernels_on

pytestmark = pytest.mark.interp

SHAPES = ((32, 5), (96, 40), (576, 33), (1600, 16))
"""(n_in, n_out): an odd number of groups, part of a tile, fewer and more steps than warps."""


@pytest.fixture(scope="module", params=ON)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_on(request.param)


def codes(n_in: int, n_out: int, bits: int, shifted: bool) -> spec.Codes:
    generator = torch.Generator().manual_seed(n_in + bits)
    shape = (n_out, n_in // spec.GROUP)
    values = torch.randint(0, 2**bits, (n_out, n_in), generator=generator, dtype=torch.uint8)
    scale = (torch.rand(shape, generator=generator) * 0.01 + 0.001).half()
    shift = (torch.randn(shape, generator=generator) * 0.05).half() if shifted else None
    return spec.Codes(bits, values, scale, shift)


def activations(n: int, n_in: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(n, n_in, generator=torch.Generator().manual_seed(n))
    x[1::3] *= 1e3  # outliers must not touch their neighbours
    x[n // 2, 5] = -3e4
    x[n - 1] = 0.0
    return x.to(dtype)


def test_the_layout_is_as_documented() -> None:
    """Bytes of a packed weight, found one by one from the description in cuda.py."""
    for bits, shifted in cuda.FORMATS:
        w = codes(96, 20, bits, shifted)
        data = cuda.pack(w).data
        assert data.shape[:2] == (2, 2)
        for output in range(20):
            for i in range(96):
                pair, q, u, quad, k = i // 64, i // 32 % 2, i // 16 % 2, i // 4 % 4, i % 4
                tile, h, row = output // 16, output // 8 % 2, output % 8
                at, lane = data[tile, pair], row * 4 + quad
                if bits == 8:
                    code = int(at[512 * q + 16 * lane + 4 * (2 * u + h) + k])
                else:
                    code = int(at[16 * lane + 4 * (2 * q + h) + k]) >> 4 * u & 15
                scales = 1024 if bits == 8 else 512
                if bits == 5:
                    word = at[512 + 4 * lane : 516 + 4 * lane].view(torch.int32).item()
                    code |= (int(word) >> (8 * k + 4 * q + 2 * u + h) & 1) << 4
                    scales = 640
                assert code == w.codes[output, i]
                place = row * 4 + q * 2 + h
                halves = at[scales:].view(torch.float16)
                assert halves[place] == w.scale[output, i // 32]
                if w.shift is not None:
                    assert halves[32 + place] == w.shift[output, i // 32]
        assert (data[1, :, -64:].view(torch.float16).view(2, 8, 2, 2)[:, 4:] == 0).all()  # no rows
        assert (data[:, 1, -64:].view(torch.float16).view(2, 8, 2, 2)[:, :, 1] == 0).all()


def test_the_packed_weight_is_what_the_file_has_and_no_more() -> None:
    for bits, shifted in cuda.FORMATS:
        n_bytes = cuda.pack(codes(128, 64, bits, shifted)).data.numel()
        assert n_bytes == 128 * 64 * bits // 8 + 4 * 64 * (4 if shifted else 2)


@pytest.mark.parametrize(("bits", "shifted"), cuda.FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dense_gives_the_weight_back(
    kernels: Kernels, bits: int, shifted: bool, dtype: torch.dtype
) -> None:
    for n_in, n_out in SHAPES:
        w = codes(n_in, n_out, bits, shifted)
        got = cuda.dense(cuda.pack(w).to(kernels.device_type), dtype, kernels=kernels).cpu()
        want = w.dense()
        assert got.shape == want.shape
        step = torch.finfo(dtype).eps
        assert ((got.float() - want).abs() <= step * want.abs() + 1e-7).all()


@pytest.mark.parametrize(("bits", "shifted"), cuda.FORMATS)
@pytest.mark.parametrize("n", [1, 9, 32])
def test_equals_the_reference(kernels: Kernels, bits: int, shifted: bool, n: int) -> None:
    on = kernels.device_type
    for n_in, n_out in SHAPES:
        w, x = codes(n_in, n_out, bits, shifted), activations(n, n_in)
        got = cuda.linear_group(x.to(on), cuda.pack(w).to(on), kernels=kernels).cpu()
        want = linear_group(x, w)
        assert ((got - want).norm(dim=1) <= 1e-5 * want.norm(dim=1)).all()
        assert (got[n - 1] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_bias_strides_and_buffers(kernels: Kernels, dtype: torch.dtype) -> None:
    on = kernels.device_type
    w, bias = codes(576, 33, 4, True), torch.randn(33)
    packed = cuda.pack(w).to(on)
    wide = activations(13, 640, dtype).to(on)
    x = wide[:, 32:608]
    work = cuda.workspace(576, on)
    work.fill_(255)  # NaN, read as fp32
    out = torch.full((13, 40), float("nan"), dtype=dtype, device=on)
    got = cuda.linear_group(
        x, packed, bias.to(on), out=out[:, :33], work=work, kernels=kernels
    ).cpu()
    want = linear_group(x.float().cpu().contiguous(), w, bias)
    limit = 2 * torch.finfo(dtype).eps
    assert ((got.float() - want).norm(dim=1) <= limit * want.norm(dim=1)).all()
    assert out[:, 33:].isnan().all()


@pytest.mark.parametrize(("bits", "shifted"), cuda.FORMATS)
def test_bit_identical_alone_and_in_every_batch(kernels: Kernels, bits: int, shifted: bool) -> None:
    on = kernels.device_type
    packed = cuda.pack(codes(704, 24, bits, shifted)).to(on)
    x = activations(32, 704).to(on)
    full = cuda.linear_group(x, packed, kernels=kernels)
    for n in (1, 2, 7, 8, 9, 16, 17):
        assert torch.equal(cuda.linear_group(x[:n], packed, kernels=kernels), full[:n]), n
        assert torch.equal(cuda.linear_group(x[-n:], packed, kernels=kernels), full[-n:]), n


def test_no_barrier_is_missing() -> None:
    kernels = kernels_on("emulated")
    for bits, shifted in cuda.FORMATS:
        packed, x = cuda.pack(codes(1600, 33, bits, shifted)), activations(11, 1600)
        forward = cuda.linear_group(x, packed, kernels=kernels)
        with cuda_build.emulated_order(kernels, 1):
            assert torch.equal(cuda.linear_group(x, packed, kernels=kernels), forward)


def test_what_does_not_fit_is_refused(kernels: Kernels) -> None:
    on = kernels.device_type
    packed = cuda.pack(codes(96, 40, 4, False)).to(on)

    def call(x: torch.Tensor, **more: object) -> None:
        cuda.linear_group(x, packed, kernels=kernels, **more)

    x = activations(4, 96).to(on)
    with pytest.raises(ValueError, match="1 to 32"):
        call(activations(33, 96).to(on))
    with pytest.raises(ValueError, match="1 to 32, 96"):
        call(activations(4, 64).to(on))
    with pytest.raises(ValueError, match="fp32, fp16 or bf16"):
        call(x.double())
    with pytest.raises(ValueError, match="side by side"):
        call(activations(96, 8).to(on).T)
    with pytest.raises(ValueError, match="multiples of 4"):
        call(activations(4, 100).to(on)[:, 1:97])
    with pytest.raises(ValueError, match="bias"):
        call(x, bias=torch.zeros(39, device=on))
    with pytest.raises(ValueError, match="out must be"):
        call(x, out=x.new_empty(4, 39))
    with pytest.raises(ValueError, match="too small"):
        call(activations(9, 96).to(on), work=cuda.workspace(96, on, 8))
    with pytest.raises(ValueError, match="needs tensors on"):
        call(x.to("meta"))
    with pytest.raises(ValueError, match="no CUDA kernel for 8 bits, shifted"):
        cuda.pack(codes(96, 40, 8, True))
    with pytest.raises(ValueError, match="multiple of 32"):
        cuda.pack(spec.Codes(8, torch.zeros(16, 40).byte(), torch.ones(16, 1).half(), None))
