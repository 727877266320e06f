"""Every kernel but attention, compiled for every GPU we name with no GPU at hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="NOT RUN: needs triton")

from kernels.call import KernelCall
from kernels.linear_group import triton as linear_group
from kernels.linear_group.gpu import GpuCodes
from kernels.logits_mask import triton as logits_mask
from kernels.rms_norm import triton as rms_norm
from kernels.rope import triton as rope
from kernels.sample import triton as sample
from kernels.sample.spec import Biases, Penalties, Settings, sample_workspace
from kernels.silu_mul import triton as silu_mul
from tests.support.triton_compile import SHARED_LIMIT, assert_fits

pytestmark = pytest.mark.interp

OTHERS = [
    # hidden, heads, kv_heads, d, intermediate, vocab, dtype
    (896, 14, 2, 64, 4864, 151936, torch.float16),  # Qwen2.5 0.5B
    (576, 9, 3, 64, 1536, 49152, torch.float32),  # SmolLM2 135M
    (8192, 64, 8, 128, 28672, 128256, torch.bfloat16),  # Llama 3.1 70B
    (2560, 32, 32, 80, 6912, 50304, torch.float16),
]
FORMATS = [(4, False), (5, False), (5, True), (8, False), (8, True)]


def given(*shape: int, of: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=of, device="meta")


def elementwise(
    hidden: int, heads: int, kv_heads: int, d: int, f: int, vocab: int, dtype: torch.dtype
) -> list[KernelCall]:
    x, weight = given(8, hidden, of=dtype), given(hidden, of=dtype)
    qkv = given(8, heads + 2 * kv_heads, d, of=dtype)
    q, k = qkv[:, :heads], qkv[:, heads : heads + kv_heads]
    rows, bits = given(8, of=torch.int32), given(8, vocab // 32, of=torch.int32)
    return [
        rms_norm.call(x, None, weight, x, 1e-5),
        rms_norm.call(x, x, weight, x, 1e-5),
        rope.call(q, k, given(8192, d), given(8, of=torch.int64)),
        silu_mul.call(given(8, 2 * f, of=dtype), given(8, f, of=dtype)),
        logits_mask.call(given(8, vocab), bits, rows),
    ]


def choosing(vocab: int, b: int = 8) -> tuple[KernelCall, ...]:
    """The last one is the long one."""
    each, number, wide = given(b), given(b, of=torch.int32), given(b, of=torch.int64)
    tokens, values = given(b, 128, of=torch.int32), given(b, 128)
    settings = Settings(
        each, number, each, each, wide, wide,
        Penalties(each, given(b, of=torch.float64), each, tokens, values),
        Biases(tokens, values),
    )  # fmt: skip
    return sample.calls(given(b, vocab), settings, sample_workspace(b, vocab, "meta"))


def packed(n_in: int, n_out: int, bits: int, shifted: bool) -> GpuCodes:
    scale = given(n_in // 32, n_out, of=torch.float16)
    return GpuCodes(
        bits=bits,
        n_in=n_in,
        n_out=n_out,
        data=given(n_out, n_in if bits == 8 else n_in // 2, of=torch.uint8),
        fifth=given(n_out, n_in // 32, of=torch.int32) if bits == 5 else None,
        scale=scale,
        shift=scale if shifted else None,
    )


def products(w: GpuCodes, dtype: torch.dtype) -> list[KernelCall]:
    """For 1, 32 and 512 rows, whole and in parts."""
    launches: list[KernelCall] = []
    for n in (1, 32, 512):
        x, out = given(n, w.n_in, of=dtype), given(n, w.n_out, of=dtype)
        launches += linear_group.calls(x, w, out[0], out)
    return launches


def fits(launches: list[KernelCall] | tuple[KernelCall, ...]) -> None:
    for call in launches:
        assert_fits(call.kernel, call.arguments, **call.options)


def test_nothing_spills() -> None:
    fits(elementwise(4096, 32, 8, 128, 14336, 128256, torch.bfloat16))
    fits(choosing(128256)[:-1])
    fits(products(packed(4096, 6144, 4, True), torch.bfloat16))


@pytest.mark.parametrize("arch", [
    name if name == "sm_90" else pytest.param(name, marks=pytest.mark.slow) for name in SHARED_LIMIT
])  # fmt: skip
def test_choosing_spills_nothing(arch: str) -> None:
    call = choosing(128256)[-1]
    assert_fits(call.kernel, call.arguments, [arch], **call.options)


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "heads", "kv_heads", "d", "f", "vocab", "dtype"), OTHERS)
def test_nothing_spills_for_other_models(
    hidden: int, heads: int, kv_heads: int, d: int, f: int, vocab: int, dtype: torch.dtype
) -> None:
    fits(elementwise(hidden, heads, kv_heads, d, f, vocab, dtype))
    fits(choosing(vocab)[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("bits", "shifted"), FORMATS)
def test_nothing_spills_for_other_formats(bits: int, shifted: bool, dtype: torch.dtype) -> None:
    fits(products(packed(896, 1152, bits, shifted), dtype))
    fits(products(packed(4864, 896, bits, shifted), dtype))
