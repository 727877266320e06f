"""Decode attention in CUDA C++ against PyTorch in float64, emulated or on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from kernels import cuda_build
from kernels.cuda_build import Kernels
from kernels.paged_attention_decode import cuda
from kernels.paged_attention_decode.reference import paged_attention_decode
from kernels.paged_attention_decode.spec import ERROR_FACTOR
from tests.support.cuda import ON
from tests.support.cuda import kernels as kernels_on

pytestmark = pytest.mark.interp

NOWHERE = 2**30
"""A block that isn't there, where a table must not be read."""


@pytest.fixture(scope="module", params=ON)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_on(request.param)


@dataclass(frozen=True)
class Case:
    """What a call is given. Slots that no query may see hold NaN; unused table entries NOWHERE."""

    q: Tensor
    cache: Tensor
    tables: Tensor
    seen: Tensor
    window: int = 0

    @property
    def scale(self) -> float:
        return float(self.q.shape[2] ** -0.5)

    def exact(self, dtype: torch.dtype) -> Tensor:
        """The reference's result, computed in dtype."""
        tables = torch.where(self.tables == NOWHERE, 0, self.tables)
        cache = self.cache.nan_to_num(0.0).to(dtype)
        q = self.q.to(dtype)
        return paged_attention_decode(
            q, cache, tables, self.seen, scale=self.scale, window=self.window
        )

    def run(self, kernels: Kernels, **more: Tensor) -> Tensor:
        on = kernels.device_type
        q, cache, tables, seen = (t.to(on) for t in (self.q, self.cache, self.tables, self.seen))
        return cuda.paged_attention_decode(
            q, cache, tables, seen, scale=self.scale, window=self.window, kernels=kernels, **more
        ).cpu()


def case(
    seen: list[int], heads: int, kv_heads: int, d: int, block_size: int = 16, window: int = 0,
    dtype: torch.dtype = torch.float16,
) -> Case:  # fmt: skip
    generator = torch.Generator().manual_seed(d + sum(seen))
    b, width = len(seen), -(-max(seen) // block_size) + 1
    n_blocks = b * width + 2
    cache = torch.randn(2, n_blocks, kv_heads, block_size, d, generator=generator).to(dtype)
    tables = torch.randperm(n_blocks, generator=generator)[: b * width].view(b, width).int()
    counts = torch.zeros(n_blocks, block_size, dtype=torch.bool)
    for row, n in enumerate(seen):
        for position in range(max(0, n - window) if window else 0, n):
            counts[tables[row, position // block_size], position % block_size] = True
        tables[row, -(-n // block_size) :] = NOWHERE
    cache.permute(0, 1, 3, 2, 4)[:, ~counts] = float("nan")
    q = torch.randn(b, heads, d, generator=generator).to(dtype)
    return Case(q, cache, tables, torch.tensor(seen, dtype=torch.int32), window)


def assert_close(got: Tensor, made: Case) -> None:
    """No worse than a small factor of what plain PyTorch loses in the same precision."""
    want = made.exact(torch.float64)
    plain = (made.exact(made.q.dtype).double() - want).abs().max()
    assert (got.double() - want).abs().max() <= ERROR_FACTOR * plain + 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "d", "block_size"),
    [(3, 3, 64, 16), (7, 1, 80, 32), (8, 4, 96, 16), (32, 2, 128, 32), (12, 1, 128, 16)],
)
def test_equals_the_reference(
    kernels: Kernels, heads: int, kv_heads: int, d: int, block_size: int, dtype: torch.dtype
) -> None:
    made = case([17, 0, 1, 300, 16], heads, kv_heads, d, block_size, dtype=dtype)
    got = made.run(kernels)
    assert_close(got, made)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("window", [1, 16, 100, 1000])
def test_a_window(kernels: Kernels, window: int) -> None:
    made = case([1, 15, 290, 533], 4, 2, 64, 32, window)
    assert_close(made.run(kernels), made)


def test_scores_of_any_size(kernels: Kernels) -> None:
    """Softmax must not overflow, nor a first tile of hopeless scores spoil what follows."""
    made = case([600], 4, 2, 64)
    keys = made.cache[0, made.tables[0, :3].long()]
    keys *= -30.0
    made.cache[0, made.tables[0, :3].long()] = keys
    assert_close(made.run(kernels), made)


def test_bit_identical_alone_and_in_a_batch(kernels: Kernels) -> None:
    made = case([700, 3, 256, 257, 0, 511], 8, 2, 64)
    together = made.run(kernels)
    for row in range(6):
        one = slice(row, row + 1)
        alone = Case(made.q[one], made.cache, made.tables[one], made.seen[one])
        assert torch.equal(alone.run(kernels), together[one])


def test_strides_output_and_a_workspace_that_serves_again(kernels: Kernels) -> None:
    on = kernels.device_type
    made = case([600, 40, 300], 4, 2, 64)
    want = made.run(kernels)
    fused = torch.full((3, 8, 64), float("nan"), dtype=torch.float16, device=on)
    fused[:, :4] = made.q.to(on)
    layers = torch.full((2, *made.cache.shape), float("nan"), dtype=torch.float16, device=on)
    layers[1] = made.cache.to(on)
    tables, seen = made.tables.to(on), made.seen.to(on)
    work = cuda.decode_workspace(fused[:, :4], layers[1], tables)
    work[cuda.COUNTERS :] = float("nan")
    out = torch.full((3, 6, 64), float("nan"), dtype=torch.float16, device=on)
    for rows in (3, 1, 3):
        got = cuda.paged_attention_decode(
            fused[:rows, :4], layers[1], tables[:rows], seen[:rows], scale=made.scale,
            out=out[:rows, 1:5], workspace=work, kernels=kernels,
        )  # fmt: skip
        assert torch.equal(got.cpu(), want[:rows])
    assert out[:, 0].isnan().all()
    assert out[:, 5].isnan().all()
    assert (work[: cuda.COUNTERS] == 0).all()


def test_blocks_far_apart() -> None:
    """Offsets past 2^31 elements. Pages that nobody writes take no memory, so never on a GPU."""
    kernels = kernels_on("emulated")
    near = case([40], 2, 1, 64)
    step = 2**31 + 64  # elements from block to block: 4 GB
    memory = torch.empty(2 * step + 2 * 16 * 64, dtype=torch.float16)
    far = memory.as_strided((2, 3, 1, 16, 64), (16 * 64, step, 16 * 64, 64, 1))
    tables = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    for place, block in enumerate(near.tables[0, :3].tolist()):
        far[:, tables[0, place]] = near.cache[:, block]
    got = cuda.paged_attention_decode(
        near.q, far, tables, near.seen, scale=near.scale, kernels=kernels
    )
    assert torch.equal(got, near.run(kernels))


def test_no_barrier_is_missing() -> None:
    kernels = kernels_on("emulated")
    made = case([700, 90], 9, 1, 80)
    forward = made.run(kernels)
    with cuda_build.emulated_order(kernels, 1):
        assert torch.equal(made.run(kernels), forward)


def test_what_does_not_fit_is_refused(kernels: Kernels) -> None:
    on = kernels.device_type
    cache = torch.zeros(2, 4, 2, 16, 64, dtype=torch.float16, device=on)
    q = torch.zeros(1, 4, 64, dtype=torch.float16, device=on)
    tables = torch.zeros(1, 4, dtype=torch.int32, device=on)
    seen = torch.ones(1, dtype=torch.int32, device=on)

    def refuses(match: str, q: Tensor, cache: Tensor, tables: Tensor, **more: Tensor) -> None:
        with pytest.raises(ValueError, match=match):
            cuda.paged_attention_decode(q, cache, tables, seen, scale=1.0, kernels=kernels, **more)

    refuses("fp16 or bf16", q.float(), cache.float(), tables)
    refuses("head size 48", q[..., :48], cache[..., :48], tables)
    refuses("multiple of 16", q, cache[:, :, :, :8], tables)
    refuses("int32", q, cache, tables.long())
    refuses("16 bytes", q.new_zeros(4 * 64 + 1)[1:].view(1, 4, 64), cache, tables)
    refuses("don't fit", q, cache.bfloat16(), tables)
    refuses("out must be", q, cache, tables, out=q.float())
    refuses("larger workspace", q, cache, tables, workspace=seen.float())
    refuses("needs tensors on", q.to("meta"), cache.to("meta"), tables)
