"""The native step's smaller operations, each against its reference, on every instruction set."""

from __future__ import annotations

import ctypes
import math
from ctypes import c_float, c_int32, c_void_p

import pytest
import torch
from torch import Tensor

from kernels import build
from kernels.rms_norm.reference import rms_norm
from kernels.rope.reference import rope
from kernels.silu_mul.reference import silu_mul
from tests.support import native

pytestmark = pytest.mark.interp


@pytest.fixture(scope="module", params=build.usable_levels())
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return native.library(request.param)


def at(x: Tensor) -> c_void_p:
    return c_void_p(x.data_ptr())


def test_it_says_which_instruction_set_it_was_built_for() -> None:
    for level in build.usable_levels():
        library = native.library(level)
        library.native_name.restype = ctypes.c_char_p
        assert library.native_name().decode() == level


@pytest.mark.parametrize(("n", "d"), [(1, 16), (3, 64), (5, 576), (2, 896)])
def test_rms_norm(library: ctypes.CDLL, n: int, d: int) -> None:
    x, weight, y = torch.randn(n, d) * 3, torch.randn(d), torch.full((n, d), math.nan)
    library.rms_norm_run(at(x), at(weight), n, d, c_float(1e-5), at(y))
    assert torch.allclose(y, rms_norm(x, weight, 1e-5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "heads", "d"), [(1, 1, 16), (3, 5, 64), (2, 3, 80), (2, 2, 128)])
def test_rope(library: ctypes.CDLL, n: int, heads: int, d: int) -> None:
    x, angle = torch.randn(n, heads, d), torch.randn(n, 1, d // 2)
    turns = torch.polar(torch.ones_like(angle), angle)
    want = x.clone()
    rope(want, turns)
    flat = torch.view_as_real(turns).contiguous()
    library.rope_run(at(x), at(flat), n, heads, d)
    assert torch.allclose(x, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("n", "f"), [(1, 16), (3, 96), (2, 1536)])
def test_silu_mul(library: ctypes.CDLL, n: int, f: int) -> None:
    x, y = torch.randn(n, 2 * f) * 5, torch.full((n, f), math.nan)
    x[0, 0], x[0, 1], x[0, 2] = -200.0, 200.0, 0.0
    library.silu_mul_run(at(x), n, f, at(y))
    assert torch.allclose(y, silu_mul(x), rtol=1e-5, atol=1e-6)


class Cache(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        *((n, c_int32) for n in ("n_blocks", "kv_heads", "size", "d", "bits")),
    ]


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "window"),
    [(4, 4, 0), (9, 3, 0), (9, 3, 21), (14, 2, 0), (5, 1, 1), (9, 1, 0)],
)
@pytest.mark.parametrize("d", [16, 64, 80, 96, 128])
def test_attention(
    library: ctypes.CDLL, heads: int, kv_heads: int, d: int, block_size: int, window: int
) -> None:
    """Slots not written yet and blocks of nobody hold NaN."""
    table = torch.tensor([5, 2, 7, 0], dtype=torch.int32)
    cache = torch.full((9, kv_heads, 2, block_size, d), math.nan, dtype=torch.half)
    spec = Cache(cache.data_ptr(), 9, kv_heads, block_size, d, 16)
    keys, values = torch.randn(2, 4 * block_size, kv_heads, d)
    written = 0

    def run(n_seen: int, q: Tensor) -> Tensor:
        out = torch.full(q.shape, math.nan)
        library.paged_attention_run(
            ctypes.byref(spec), at(table), n_seen, len(q), heads, at(q), c_float(d**-0.5), window,
            at(out),
        )  # fmt: skip
        return out

    for n_seen, n in ((1, 1), (15, 3), (16, 1), (17, 17), (block_size + 3, 2), (4 * block_size, 9)):
        for i in range(written, n_seen):
            block, slot = int(table[i // block_size]), i % block_size
            library.paged_attention_write(
                ctypes.byref(spec), block, slot, at(keys[i]), at(values[i])
            )
        written = n_seen
        q = torch.randn(n, heads, d) * 2
        out = run(n_seen, q)
        for t in range(n):
            seen = n_seen - n + 1 + t
            k, v = (
                x[max(0, seen - window) if window else 0 : seen].half().float().transpose(0, 1)
                .repeat_interleave(heads // kv_heads, 0)
                for x in (keys, values)
            )  # fmt: skip
            weights = torch.softmax((k @ q[t, :, :, None]).squeeze(-1) * d**-0.5, -1)
            want = (weights[:, None] @ v).squeeze(1)
            assert torch.allclose(out[t], want, rtol=1e-4, atol=1e-5), (n_seen, t)
            assert torch.equal(run(seen, q[t : t + 1]), out[t : t + 1]), (n_seen, t)


def rounded(x: Tensor, most: int = 127) -> Tensor:
    """Every last dimension as whole numbers up to `most` and a scale of its own."""
    scale = x.abs().amax(-1, keepdim=True) / most
    return (x / torch.where(scale == 0, 1.0, scale)).round() * scale


def plain_int8(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """One query [heads, 1, d] over positions [heads, n, d] as the kernels round: query, keys and
    values, and the weights of sixteen positions, with their values' scales, to 0 .. 255."""
    weights = torch.softmax(rounded(q) @ rounded(k).transpose(1, 2) * scale, -1)
    by = v.abs().amax(-1)[:, None] / 127
    shares = torch.nn.functional.pad(weights * by, (0, -k.shape[1] % 16)).unflatten(-1, (-1, 16))
    shares = rounded(shares, 255).flatten(-2)[..., : k.shape[1]]
    return shares @ (rounded(v) / torch.where(by == 0, 1.0, by).transpose(1, 2))


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "window"),
    [(4, 4, 0), (9, 3, 0), (9, 3, 21), (14, 2, 0), (5, 1, 1), (9, 1, 0)],
)
@pytest.mark.parametrize("d", [16, 64, 80, 96, 128])
def test_attention_over_int8(
    library: ctypes.CDLL, heads: int, kv_heads: int, d: int, block_size: int, window: int
) -> None:
    """No further from fp64 than twice what plain PyTorch loses by the same rounding; rows not
    written yet and blocks of nobody hold NaN scales. A channel is ten times the others."""
    generator = torch.Generator().manual_seed(d + heads)
    table = torch.tensor([5, 2, 7, 0], dtype=torch.int32)
    cache = torch.full((9, kv_heads, block_size // 16, 32 * d + 128), 255, dtype=torch.uint8)
    spec = Cache(cache.data_ptr(), 9, kv_heads, block_size, d, 8)
    keys, values = torch.randn(2, 4 * block_size, kv_heads, d, generator=generator)
    keys[..., 3] *= 10
    values[7] = 0.0
    written = 0

    def run(n_seen: int, q: Tensor) -> Tensor:
        out = torch.full(q.shape, math.nan)
        library.paged_attention_run(
            ctypes.byref(spec), at(table), n_seen, len(q), heads, at(q), c_float(d**-0.5), window,
            at(out),
        )  # fmt: skip
        return out

    ours, theirs = [], []
    for n_seen, n in ((1, 1), (15, 3), (17, 17), (block_size + 3, 2), (4 * block_size, 9)):
        for i in range(written, n_seen):
            block, slot = int(table[i // block_size]), i % block_size
            library.paged_attention_write(
                ctypes.byref(spec), block, slot, at(keys[i]), at(values[i])
            )
        written = n_seen
        q = torch.randn(n, heads, d, generator=generator)
        out = run(n_seen, q)
        assert torch.isfinite(out).all()
        for t in range(n):
            seen = n_seen - n + 1 + t
            low = max(0, seen - window) if window else 0
            k, v = (
                x[low:seen].double().transpose(0, 1).repeat_interleave(heads // kv_heads, 0)
                for x in (keys, values)
            )
            query = q[t, :, None].double()
            truth = torch.softmax(query @ k.transpose(1, 2) * d**-0.5, -1) @ v
            theirs.append(plain_int8(query, k, v, d**-0.5) - truth)
            ours.append(out[t, :, None] - truth)
            assert torch.equal(run(seen, q[t : t + 1]), out[t : t + 1]), (n_seen, t)
    error, plain = (torch.stack(errors).norm() for errors in (ours, theirs))
    assert error <= 1.5 * plain, f"{error:.3g} is off, the reference {plain:.3g}"
    assert torch.stack(ours).abs().max() <= 2 * torch.stack(theirs).abs().max()


def test_instruction_sets_agree_on_int8_to_the_bit() -> None:
    heads, kv_heads, d, n_seen = 7, 1, 64, 45
    q, keys, values = torch.randn(9, heads, d), torch.randn(48, d), torch.randn(48, d)
    table, results = torch.tensor([2, 0, 1], dtype=torch.int32), []
    for level in build.usable_levels():
        library = native.library(level)
        cache, out = torch.zeros(3, 32 * d + 128, dtype=torch.uint8), torch.empty(9, heads, d)
        spec = Cache(cache.data_ptr(), 3, kv_heads, 16, d, 8)
        for i in range(n_seen):
            library.paged_attention_write(
                ctypes.byref(spec), int(table[i // 16]), i % 16, at(keys[i]), at(values[i])
            )
        library.paged_attention_run(
            ctypes.byref(spec), at(table), n_seen, 9, heads, at(q), c_float(0.125), 0, at(out)
        )
        results.append((cache, out))
    for cache, out in results[1:]:
        assert torch.equal(cache, results[0][0])
        assert torch.equal(out, results[0][1])


@pytest.mark.parametrize("bits", [8, 16])
def test_requests_one_after_the_other_are_as_alone(library: ctypes.CDLL, bits: int) -> None:
    heads, kv_heads, d, size, n_seen = 9, 3, 64, 16, 37
    tables = torch.tensor([[5, 2, 7], [0, 8, 3]], dtype=torch.int32)
    cache = torch.randn(9, kv_heads, 2 * size * d).half()
    if bits == 8:
        cache = torch.ones(9, kv_heads, 32 * d + 128, dtype=torch.uint8)
        cache.random_(0, 64)  # scales, too, are then small numbers
    spec = Cache(cache.data_ptr(), 9, kv_heads, size, d, bits)
    q, alone, last = torch.randn(heads, d), torch.empty(heads, d), torch.empty(heads, d)
    by = c_float(d**-0.5)
    library.paged_attention_run(
        ctypes.byref(spec), at(tables[1]), n_seen, 1, heads, at(q), by, 0, at(alone)
    )
    library.paged_attention_run_all(
        ctypes.byref(spec), at(tables), 2, n_seen, heads, at(q), by, at(last)
    )
    assert torch.equal(alone, last)
