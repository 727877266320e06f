// What a CUDA kernel here is written with: vectors, tensor-core products, shuffles, asynchronous
// copies. nvcc turns them into the instructions; any other C++ compiler gets emulate.cuh, which runs
// the same kernels on the processor. Fragment layouts are those of the PTX ISA (mma, movmatrix):
// of a warp's 32 lanes, "row" is lane / 4 and "quad" is lane % 4.
#pragma once
#include <cstdint>

template <int N>
struct alignas(4 * N) Words {  // 4, 8 or 16 bytes, moved by one instruction
  uint32_t word[N];
};

struct Fp16 {};
struct Bf16 {};
enum Kind : int64_t { FP32 = 0, FP16 = 1, BF16 = 2 };  // as Python passes them

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define DEVICE __device__ __forceinline__
#define SHARED(name, n_bytes) __shared__ alignas(16) uint8_t name[n_bytes]

using Stream = cudaStream_t;

template <typename... P, typename... A>
int launch(void (*kernel)(P...), dim3 grid, int threads, void* stream, A... given) {
  auto run = [&](P... args) {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))...};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(threads), pointers,
                            0, static_cast<Stream>(stream));
  };
  return run(given...);
}

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }

// Memory that this launch doesn't write.
template <int N>
DEVICE Words<N> load(const void* p) {
  Words<N> x;
  if constexpr (N == 4) {
    const uint4 v = __ldg(static_cast<const uint4*>(p));
    x = {v.x, v.y, v.z, v.w};
  } else if constexpr (N == 2) {
    const uint2 v = __ldg(static_cast<const uint2*>(p));
    x = {v.x, v.y};
  } else {
    x = {__ldg(static_cast<const uint32_t*>(p))};
  }
  return x;
}
DEVICE float load_fresh(const float* p) { return __ldcg(p); }  // that another block wrote
template <int N>
DEVICE Words<N> peek(const void* p) {  // any other memory
  return *static_cast<const Words<N>*>(p);
}

using SharedAddress = uint32_t;
DEVICE SharedAddress shared_address(void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
DEVICE void async_copy16(SharedAddress to, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
DEVICE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DEVICE void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
DEVICE int shuffle_xor(int x, int mask) { return __shfl_xor_sync(~0u, x, mask); }

DEVICE uint32_t transpose8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// d [16, 8] = c + a [16, 32] unsigned bytes @ b [32, 8] signed bytes.
DEVICE void mma_bytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                      const int32_t (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}

// c [16, 8] += a [16, 16] @ b [16, 8], sums in fp32.
template <typename T>
DEVICE void mma_halves(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
DEVICE void mma_halves<Fp16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
DEVICE void mma_halves<Bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Keeps a pointer that a loop moves on in a register: the compiler would add it up anew each time.
DEVICE void keep(const uint8_t*& p) { asm volatile("" : "+l"(p)); }

DEVICE int32_t rounded(float x) { return __float2int_rn(x); }  // half to even
DEVICE float as_float(int32_t x) { return __int_as_float(x); }
DEVICE int32_t as_int(float x) { return __float_as_int(x); }
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE float power2(float x) { return exp2f(x); }
DEVICE uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  return __byte_perm(a, b, which);
}

DEVICE float float_of(Fp16, uint32_t x) { return __half2float(__ushort_as_half(uint16_t(x))); }
DEVICE float float_of(Bf16, uint32_t x) { return __uint_as_float(x << 16); }
DEVICE uint16_t bits_of(Fp16, float x) { return __half_as_ushort(__float2half_rn(x)); }
DEVICE uint16_t bits_of(Bf16, float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// Counts this block among those that share `counter`; its writes are seen by the last to come.
DEVICE int arrive(int32_t* counter) {
  __threadfence();
  const int before = atomicAdd(counter, 1);
  __threadfence();
  return before;
}
#else
#include "emulate.cuh"
#endif

template <typename T>
DEVICE float half_of(uint32_t pair, int i) {  // 0: the low one
  return float_of(T{}, pair >> 16 * i & 0xffffu);
}
template <typename T>
DEVICE uint32_t pair_of(float low, float high) {
  return bits_of(T{}, low) | static_cast<uint32_t>(bits_of(T{}, high)) << 16;
}

DEVICE void store(Kind kind, void* to, int64_t i, float x) {
  if (kind == FP32) {
    static_cast<float*>(to)[i] = x;
  } else {
    static_cast<uint16_t*>(to)[i] = kind == FP16 ? bits_of(Fp16{}, x) : bits_of(Bf16{}, x);
  }
}
