"""Attention and cache kernels, compiled for every GPU we name with no GPU at hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="NOT RUN: needs triton")

from kernels import tuning
from kernels.call import KernelCall
from kernels.kv_copy import triton as kv_copy
from kernels.kv_write import triton as kv_write
from kernels.paged_attention.tile import shape_class
from kernels.paged_attention_decode import triton as decode
from kernels.paged_attention_prefill import triton as prefill
from tests.support.triton_compile import assert_fits, compile_for

pytestmark = pytest.mark.interp

LLAMA = (32, 8, 128, 16, torch.bfloat16, 0)
"""Llama 3.1 8B."""
OTHERS = (
    # heads, kv_heads, d, block, dtype, window
    (14, 2, 64, 16, torch.float16, 0),  # Qwen2.5 0.5B
    (32, 32, 80, 32, torch.bfloat16, 0),
    (32, 8, 128, 32, torch.bfloat16, 4096),  # Mistral 7B v0.1
    (16, 1, 96, 16, torch.float16, 1000),
    (9, 3, 64, 16, torch.float32, 0),
    (8, 8, 128, 16, torch.float32, 0),
    (8, 8, 128, 16, torch.float16, 0),
    (71, 1, 64, 32, torch.bfloat16, 0),
    (16, 16, 96, 32, torch.float32, 500),
    (24, 8, 80, 16, torch.float32, 0),
    (8, 8, 64, 32, torch.float16, 0),
)
SHAPE = ("heads", "kv_heads", "d", "block", "dtype", "window")


def attention(
    heads: int,
    kv_heads: int,
    d: int,
    block: int,
    dtype: torch.dtype,
    window: int,
    int8: bool = False,
) -> Iterator[KernelCall]:
    """Every kernel that a model of this shape launches. int8: over a cache in 8 bits."""
    b = 8

    def given(*shape: int, of: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    q, held = given(b, heads, d, of=dtype), torch.int8 if int8 else dtype
    cache = given(2, 1000, kv_heads, block, d, of=held)
    scales = given(*cache.shape[:-1], of=torch.float32) if int8 else None
    tables, seen = given(b, 8192 // block), given(b)
    for waves in (1, 132 * 4):  # one share per request, and many
        shape = shape_class(q, cache)
        with tuning.using({"paged_attention_decode": {shape: {"WAVES": waves}}}):
            workspace = decode.decode_workspace(q, cache, tables, window)
            launches = decode.calls(
                q, cache, tables, seen, q, workspace, scale=0.1, window=window, scales=scales
            )
        assert len(launches) == (1 if waves == 1 else 2)
        yield from launches
    for max_q in (1, 512):
        yield prefill.call(
            q, cache, tables, given(b + 1), seen, q,
            scale=0.1, window=window, max_q=max_q, scales=scales,
        )  # fmt: skip
    k, slots = given(b, kv_heads, d, of=dtype), given(b, of=torch.int64)
    yield kv_write.call(k, k, cache, slots, scales)
    layers = given(32, *cache.shape, of=held)
    all_scales = None if scales is None else given(*layers.shape[:-1], of=torch.float32)
    yield kv_copy.call(layers, slots, slots, slots, all_scales)


@pytest.mark.parametrize("int8", [False, True])
def test_nothing_spills(int8: bool) -> None:
    for call in attention(*LLAMA, int8):
        assert_fits(call.kernel, call.arguments, **call.options)


@pytest.mark.slow
@pytest.mark.parametrize(SHAPE, OTHERS)
def test_nothing_spills_for_other_shapes(
    heads: int, kv_heads: int, d: int, block: int, dtype: torch.dtype, window: int
) -> None:
    for int8 in (False, True):
        for call in attention(heads, kv_heads, d, block, dtype, window, int8):
            assert_fits(call.kernel, call.arguments, **call.options)


def test_products_run_on_tensor_cores_and_reads_are_wide() -> None:
    for call in attention(*LLAMA):
        ptx = compile_for(call.kernel, call.arguments, "sm_90", **call.options).ptx
        if call.kernel is not decode._join and "tables" in call.arguments:
            assert "mma" in ptx
            assert "cp.async.cg.shared.global" in ptx, "16 bytes at a time, past the registers"
        else:
            assert "global.v4" in ptx or "global.v2" in ptx
