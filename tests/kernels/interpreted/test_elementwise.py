"""The small kernels against PyTorch: odd shapes, strides, poisoned padding, empty batches."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.models.config import ModelConfig, RopeScaling
from kernels import tuning
from kernels.logits_mask import reference as mask_reference
from kernels.logits_mask import spec as mask_spec
from kernels.logits_mask.triton import logits_mask
from kernels.resolve import chosen, resolve
from kernels.rms_norm.triton import rms_norm, rms_norm_add
from kernels.rope import reference as rope_reference
from kernels.rope.triton import rope_at
from kernels.silu_mul.triton import silu_mul
from tests.support.precision import assert_as_good

pytestmark = pytest.mark.interp

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def padded(n: int, d: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """[n, d] inside a wider tensor of NaN."""
    wide = torch.full((n, d + 8), math.nan, dtype=dtype)
    wide[:, :d] = torch.randn(n, d, generator=torch.Generator().manual_seed(n + d)) * scale
    return wide[:, :d]


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, True) + 1e-5) * weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "d"), [(1, 576), (3, 1536), (5, 33), (0, 64)])
def test_rms_norm(n: int, d: int, dtype: torch.dtype) -> None:
    x, weight = padded(n, d, dtype, 3.0), torch.randn(d).to(dtype)
    exact = plain_norm(x.double(), weight.double())
    assert_as_good(rms_norm(x, weight, 1e-5), plain_norm(x, weight), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_add(dtype: torch.dtype) -> None:
    x, residual, weight = padded(4, 300, dtype), padded(4, 300, dtype, 9.0), torch.randn(300)
    sum_ = x + residual
    got = rms_norm_add(x, residual, weight, 1e-5)
    assert torch.equal(residual, sum_)
    assert torch.equal(got, rms_norm(sum_, weight, 1e-5))
    assert torch.isnan(residual.as_strided((4, 308), (308, 1))[:, 300:]).all()


def far(d: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """[3, d], the last row beyond what 32 bits address; only three rows' pages are touched."""
    stride = 2**30 + 16
    x = torch.empty(2 * stride + d, dtype=dtype).as_strided((3, d), (stride, 1))
    return x.copy_(torch.randn(3, d))


def near(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def test_rows_beyond_2_to_the_31_elements() -> None:
    x, residual, gate_up = far(64), far(64), far(64)
    weight, plain = torch.ones(64), near(residual)
    assert torch.equal(rms_norm(x, weight, 1e-5), rms_norm(near(x), weight, 1e-5))
    want = rms_norm_add(near(x), plain, weight, 1e-5)
    assert torch.equal(rms_norm_add(x, residual, weight, 1e-5), want)
    assert torch.equal(residual, plain)
    assert torch.equal(silu_mul(gate_up), silu_mul(near(gate_up)))


def test_tokens_beyond_2_to_the_31_elements_are_turned() -> None:
    q, k = (far(2 * 64).unflatten(1, (2, 64)) for _ in range(2))
    want_q, want_k = near(q), near(k)
    given = llama3_table(64, 400), torch.tensor([399, 0, 7])
    rope_at(want_q, want_k, *given)
    assert not torch.equal(want_q, q)
    rope_at(q, k, *given)
    assert torch.equal(q, want_q)
    assert torch.equal(k, want_k)


def test_logits_beyond_2_to_the_31_elements_are_ruled_out() -> None:
    logits = far(70)
    want, rows = near(logits), torch.tensor([2, 0], dtype=torch.int32)
    bits = torch.randint(-(2**31), 2**31, (3, 3), dtype=torch.int64).int()
    mask_reference.logits_mask(want, bits, rows)
    assert want[2].isinf().any()
    logits_mask(logits, bits, rows)
    assert torch.equal(logits, want)


def test_nothing_to_do() -> None:
    none, table = torch.zeros(0, 64), llama3_table(64, 4)
    assert rms_norm_add(none, none, torch.ones(64), 1e-5).shape == (0, 64)
    heads = none.unflatten(1, (1, 64))
    rope_at(heads, heads, table, torch.zeros(0, dtype=torch.int64))
    logits = torch.randn(2, 70)
    want, bits = logits.clone(), torch.zeros(2, 3, dtype=torch.int32)
    for rows in ([], [-1, -1]):
        logits_mask(logits, bits, torch.tensor(rows, dtype=torch.int32))
        assert torch.equal(logits, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "f"), [(1, 1536), (3, 33), (0, 8)])
def test_silu_mul(n: int, f: int, dtype: torch.dtype) -> None:
    x = padded(n, 2 * f, dtype, 4.0)
    gate, up = x[:, :f], x[:, f:]
    assert_as_good(silu_mul(x), F.silu(gate) * up, F.silu(gate.double()) * up.double())


def llama3_table(d: int, n: int) -> Tensor:
    config = ModelConfig(
        "llama", 8, d, 1, 1, 1, d, 8, 1e-5, 500_000.0, 8192, RopeScaling(8.0, 1.0, 4.0, 64)
    )
    return torch.view_as_real(config.rope_turns(n)).flatten(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "heads", "kv_heads", "d"), [(2, 9, 3, 64), (1, 2, 1, 80)])
def test_rope_at(n: int, heads: int, kv_heads: int, d: int, dtype: torch.dtype) -> None:
    """Queries and keys in one projection, whose values must stay as they are."""
    qkv = torch.randn(n, heads + 2 * kv_heads, d).to(dtype)
    before = qkv.clone()
    table, positions = llama3_table(d, 400), torch.tensor([399, 0])[:n]
    rope_at(qkv[:, :heads], qkv[:, heads : heads + kv_heads], table, positions)
    turns = torch.view_as_complex(table.view(400, d // 2, 2).double())[positions].unsqueeze(1)
    turned = heads + kv_heads
    pairs = torch.view_as_complex(before.double().view(n, -1, d // 2, 2))[:, :turned] * turns
    exact = torch.view_as_real(pairs).flatten(-2)
    plain = before.clone()
    rope_reference.rope_at(plain[:, :heads], plain[:, heads:turned], table, positions)
    assert_as_good(qkv[:, :turned], plain[:, :turned], exact)
    assert torch.equal(qkv[:, turned:], before[:, turned:])


@pytest.mark.parametrize(("b", "v", "words"), mask_spec.SHAPES)
def test_logits_mask(b: int, v: int, words: int) -> None:
    wide = torch.randn(b, v + 5)
    logits, want = wide[:, :v], wide.clone()
    bits = torch.randint(-(2**31), 2**31, (b, words), dtype=torch.int64).int()
    rows = torch.tensor([b - 1, -1, 0][: b + 1], dtype=torch.int32)
    mask_reference.logits_mask(want[:, :v], bits, rows)
    logits_mask(logits, bits, rows)
    assert torch.equal(wide, want)
    allowed = [t for t in range(v) if t < 32 * words and int(bits[0, t // 32]) >> (t % 32) & 1]
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == allowed


def test_the_interpreted_kernels_are_resolved() -> None:
    assert resolve("rms_norm", torch.device("cpu")) is rms_norm
    assert chosen()["rms_norm", "cpu"] == "triton"


def test_a_sweep_changes_a_launch() -> None:
    x = torch.randn(2, 100)
    want = silu_mul(x)
    with tuning.using({"silu_mul": {"all": {"BLOCK": 16}}}):
        assert torch.equal(silu_mul(x), want)
    with (
        tuning.using({"silu_mul": {"all": {"BLOCKS": 16}}}),
        pytest.raises(ValueError, match="silu_mul all has no BLOCKS"),
    ):
        silu_mul(x)
