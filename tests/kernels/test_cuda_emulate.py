"""The emulated GPU runs kernels as written, and tells on those that break a rule."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernels import cuda_build
from kernels.cuda_build import Kernels, LaunchError

pytestmark = pytest.mark.interp

SOURCE = """
#include "device.cuh"

__global__ void turn(const int* x, int* y, int with_barrier) {  // y = x reversed, in each block
  SHARED(shared, 256 * 4);
  auto* values = reinterpret_cast<int*>(shared);
  values[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  if (with_barrier) sync_block();
  y[blockIdx.x * 256 + threadIdx.x] = values[255 - threadIdx.x];
}

__global__ void copy(const uint8_t* x, uint8_t* y, int wait, int shift) {
  SHARED(shared, 32 * 16);
  async_copy16(shared_address(shared + 16 * threadIdx.x), x + 16 * threadIdx.x + shift);
  async_commit();
  if (wait == 1) async_wait<1>();
  if (wait == 0) async_wait<0>();
  sync_warp();
  for (int i = 0; i < 16; ++i) y[16 * threadIdx.x + i] = shared[16 * threadIdx.x + i];
}

__global__ void stray(int* y, int how) {
  if (how == 0 && threadIdx.x < 16) sync_warp();                       // half a warp
  if (how == 1 && threadIdx.x < 16) sync_warp();
  if (how == 1 && threadIdx.x >= 16) y[0] = shuffle_xor(1, 16);        // the other half elsewhere
  if (how == 2 && threadIdx.x < 32) sync_block();                      // one warp of two
  if (how == 3) y[threadIdx.x] = shuffle_xor(static_cast<int>(threadIdx.x), 16);
}

__global__ void products(const uint32_t* in, int32_t* bytes, float* halves, uint32_t* turned) {
  const int lane = threadIdx.x;
  const uint32_t a[4] = {in[lane], in[32 + lane], in[64 + lane], in[96 + lane]};
  const int32_t ones[4] = {1, 1, 1, 1};
  int32_t c[4];
  mma_bytes(c, a, in[128 + lane], in[160 + lane], ones);
  float f[4] = {1, 1, 1, 1};
  mma_halves<Fp16>(f, a, in[128 + lane], in[160 + lane]);
  for (int i = 0; i < 4; ++i) {
    const int at = (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
    bytes[at] = c[i];
    halves[at] = f[i];
  }
  turned[lane] = transpose8x8(in[lane]);
}

__global__ void convert(const float* x, uint16_t* half, uint16_t* bfloat, float* back) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  half[i] = bits_of(Fp16{}, x[i]);
  bfloat[i] = bits_of(Bf16{}, x[i]);
  back[i] = float_of(Fp16{}, half[i]);
}

extern "C" {
int run_turn(const int* x, int* y, int64_t barrier, void* stream) {
  return launch(turn, dim3(3), 256, stream, x, y, static_cast<int>(barrier));
}
int run_copy(const uint8_t* x, uint8_t* y, int64_t wait, int64_t shift, void* stream) {
  return launch(copy, dim3(1), 32, stream, x, y, static_cast<int>(wait), static_cast<int>(shift));
}
int run_stray(int* y, int64_t how, void* stream) {
  return launch(stray, dim3(1), 64, stream, y, static_cast<int>(how));
}
int run_products(const uint32_t* in, int32_t* c, float* f, uint32_t* t, void* stream) {
  return launch(products, dim3(1), 32, stream, in, c, f, t);
}
int run_convert(const float* x, uint16_t* h, uint16_t* b, float* back, int64_t n, void* stream) {
  return launch(convert, dim3(static_cast<unsigned>(n / 32)), 32, stream, x, h, b, back);
}
}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("NOT RUN: needs g++")
    folder = tmp_path_factory.mktemp("emulate")
    (folder / "kernels.cu").write_text(SOURCE)
    native = Path(cuda_build.__file__).parent / "native"
    subprocess.run(
        [compiler, *cuda_build.HOST_FLAGS, "-I", native, "-x", "c++", folder / "kernels.cu",
         "-o", folder / "kernels.so"],
        check=True,
    )  # fmt: skip
    return Kernels(ctypes.CDLL(str(folder / "kernels.so")), "cpu")


@pytest.mark.parametrize("order", [0, 1])
def test_blocks_threads_and_shared_memory(run: Kernels, order: int) -> None:
    x, y = torch.arange(768, dtype=torch.int32), torch.zeros(768, dtype=torch.int32)
    with cuda_build.emulated_order(run, order):
        run.launch("run_turn", x, y, 1)
    assert torch.equal(y.view(3, 256), x.view(3, 256).flip(1))


def test_a_missing_barrier_shows(run: Kernels) -> None:
    x, y = torch.arange(768, dtype=torch.int32), torch.zeros(768, dtype=torch.int32)
    run.launch("run_turn", x, y, 0)
    assert not torch.equal(y.view(3, 256), x.view(3, 256).flip(1))


def test_an_asynchronous_copy_lands_when_it_is_waited_for(run: Kernels) -> None:
    x = torch.arange(512, dtype=torch.int32).to(torch.uint8)
    y = torch.zeros(512, dtype=torch.uint8)
    run.launch("run_copy", x, y, 0, 0)
    assert torch.equal(y, x)


def test_a_copy_that_is_not_waited_for_shows(run: Kernels) -> None:
    x, y = torch.zeros(512, dtype=torch.uint8), torch.zeros(512, dtype=torch.uint8)
    with pytest.raises(LaunchError, match="nobody waited"):
        run.launch("run_copy", x, y, 1, 0)
    assert (y[-16:] == 255).all()  # shared memory as the last lane, the first to go on, finds it


def test_a_vector_on_a_wrong_boundary(run: Kernels) -> None:
    x = torch.zeros(600, dtype=torch.uint8)
    with pytest.raises(LaunchError, match="wrong boundary"):
        run.launch("run_copy", x, x, 0, 4)


@pytest.mark.parametrize(
    ("how", "said"), [(0, "for ever at: sync_warp"), (1, "different places"), (2, "for ever")]
)
def test_threads_that_never_meet(run: Kernels, how: int, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        run.launch("run_stray", torch.zeros(64, dtype=torch.int32), how)
    run.launch("run_stray", torch.zeros(64, dtype=torch.int32), 3)  # the next launch is unharmed


def test_a_shuffle(run: Kernels) -> None:
    y = torch.zeros(64, dtype=torch.int32)
    run.launch("run_stray", y, 3)
    assert torch.equal(y, torch.arange(64, dtype=torch.int32) ^ 16)


def test_products_and_the_transpose_take_the_manuals_fragments(run: Kernels) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.randint(0, 256, (16, 32), generator=generator, dtype=torch.uint8)
    b = torch.randint(-128, 128, (32, 8), generator=generator, dtype=torch.int8)
    registers = torch.zeros(6, 32, 4, dtype=torch.uint8)
    for lane in range(32):
        row, quad = lane // 4, lane % 4
        for i in range(16):  # a0 ... a15 of m16n8k32
            m = row if i < 4 or 8 <= i < 12 else row + 8
            k = quad * 4 + i % 4 + (16 if i >= 8 else 0)
            registers[i // 4, lane, i % 4] = a[m, k]
        for i in range(8):
            k = quad * 4 + i % 4 + (16 if i >= 4 else 0)
            registers[4 + i // 4, lane, i % 4] = b[k, row].view(torch.uint8)
    sums = torch.zeros(16, 8, dtype=torch.int32)
    unused, turned = torch.zeros(16, 8), torch.zeros(32, dtype=torch.int32)
    run.launch("run_products", registers, sums, unused, turned)
    assert torch.equal(sums, a.int() @ b.int() + 1)
    square = registers[0].contiguous().view(torch.int16).view(8, 8)
    assert torch.equal(turned.view(torch.int16).view(8, 8), square.T)

    a = torch.randint(-9, 9, (16, 16), generator=generator).half()
    b = torch.randint(-9, 9, (16, 8), generator=generator).half()
    pairs = torch.zeros(6, 32, 2, dtype=torch.float16)
    for lane in range(32):
        row, quad = lane // 4, lane % 4
        for i in range(8):  # a0 ... a7 of m16n8k16
            m = row if i < 2 or 4 <= i < 6 else row + 8
            pairs[i // 2, lane, i % 2] = a[m, quad * 2 + i % 2 + (8 if i >= 4 else 0)]
        for i in range(4):
            pairs[4 + i // 2, lane, i % 2] = b[quad * 2 + i % 2 + (8 if i >= 2 else 0), row]
    mixed = torch.zeros(16, 8)
    run.launch("run_products", pairs, sums, mixed, turned)
    assert torch.equal(mixed, a.float() @ b.float() + 1)


def test_halves_round_as_pytorch_rounds(run: Kernels) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(4096, generator=generator) * torch.logspace(-9, 6, 4096)
    x[:8] = torch.tensor([0.0, -0.0, 65504.0, 65519.9, 65520.0, -1e9, 6e-8, 2.98e-8])
    half, bfloat = torch.zeros(4096, dtype=torch.half), torch.zeros(4096, dtype=torch.bfloat16)
    back = torch.zeros(4096)
    run.launch("run_convert", x, half, bfloat, back, 4096)
    assert torch.equal(half, x.half())
    assert torch.equal(bfloat, x.bfloat16())
    assert torch.equal(back, x.half().float())
