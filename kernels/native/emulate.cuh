// The primitives of device.cuh on the processor, so that a kernel's own source runs without a GPU.
//
// Each thread of a block is a coroutine. It runs until it meets a barrier, a shuffle or a product,
// and goes on when every lane that must take part has come. Whoever breaks a rule that a GPU would
// punish is reported by the launch: lanes of a warp at different instructions, a barrier that some
// threads never reach, a vector on a wrong boundary. An asynchronous copy lands as late as its wait
// allows, shared memory starts as NaN in every block, and EMULATE_ORDER reverses the order in which
// threads run, so a barrier that is missing shows as a wrong result. Nothing here knows time, memory
// ordering between blocks, or registers.
#pragma once
#include <ucontext.h>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define DEVICE inline
#define __global__
#define __launch_bounds__(...)
#define SHARED(name, n_bytes)                  \
  alignas(16) static uint8_t name[n_bytes];    \
  emulate::poison(name, n_bytes)

struct dim3 {
  unsigned x, y, z;
  explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, gridDim;  // of the thread that runs now

namespace emulate {

constexpr int LANES = 32;
constexpr size_t STACK = 128 << 10;
constexpr int LAUNCH_FAILED = 719;  // cudaErrorLaunchFailure

struct Copy {
  void* to;
  const void* from;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[STACK]};
  bool done;
  const char* waits;                      // for what, or null
  int epoch;                              // how many warp instructions it took part in
  uint32_t posted[2][8];                  // its registers in the latest two of them
  std::vector<std::vector<Copy>> groups;  // asynchronous copies; the last is still open
};

struct Group {  // threads that meet: a warp or the block
  int size = 0, here = 0, turn = 0;
  const char* what = nullptr;
};

struct State {
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Group> warps;
  Group block;
  ucontext_t scheduler;
  std::function<void()> body;
  std::vector<const void*> poisoned;
  int now = 0, progress = 0;
  char error[200] = "";
};
inline State state;

inline Thread& self() { return *state.threads[state.now]; }
inline int lane() { return state.now % LANES; }

inline void yield() { swapcontext(&self().context, &state.scheduler); }

[[noreturn]] inline void fail(const char* why) {
  if (!state.error[0])
    std::snprintf(state.error, sizeof state.error, "thread %d of block (%u, %u, %u): %s", state.now,
                  blockIdx.x, blockIdx.y, blockIdx.z, why);
  for (;;) yield();
}

inline void poison(uint8_t* memory, size_t n_bytes) {
  for (const void* known : state.poisoned)
    if (known == memory) return;
  state.poisoned.push_back(memory);
  std::memset(memory, 0xff, n_bytes);
}

inline void meet(Group& group, const char* what) {
  if (group.here && group.what != what) fail("threads that must act together are at different places");
  group.what = what;
  ++state.progress;
  if (++group.here == group.size) {
    group.here = 0;
    ++group.turn;
    return;
  }
  self().waits = what;
  for (const int turn = group.turn; group.turn == turn;) yield();
  self().waits = nullptr;
  ++state.progress;
}

inline Group& warp() { return state.warps[state.now / LANES]; }

// Every lane shows N registers to its warp; then `of(lane)` reads another's. A lane can be at most
// one such instruction ahead of the others, so two sets are enough.
template <int N>
struct Shown {
  int set;
  Shown(const char* what, const uint32_t (&mine)[N]) : set(self().epoch++ & 1) {
    std::memcpy(self().posted[set], mine, sizeof mine);
    meet(warp(), what);
  }
  const uint32_t* of(int lane) const {
    return state.threads[state.now / LANES * LANES + lane]->posted[set];
  }
};

inline void enter() {
  state.body();
  self().done = true;
  ++state.progress;
  if (self().groups.size() > 1 || !self().groups.back().empty())
    fail("asynchronous copies that nobody waited for");
  for (;;) yield();
}

inline bool run_block(int n, bool reversed) {
  state.poisoned.clear();
  state.block = {};
  state.block.size = n;
  state.warps.assign(n / LANES, {});
  for (Group& warp : state.warps) warp.size = LANES;
  while (static_cast<int>(state.threads.size()) < n)
    state.threads.push_back(std::make_unique<Thread>());
  for (int i = 0; i < n; ++i) {
    Thread& thread = *state.threads[i];
    thread.done = false;
    thread.waits = nullptr;
    thread.epoch = 0;
    thread.groups.assign(1, {});
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = STACK;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, enter, 0);
  }
  for (;;) {
    const int before = state.progress;
    bool all_done = true;
    for (int i = 0; i < n; ++i) {
      state.now = reversed ? n - 1 - i : i;
      if (self().done) continue;
      threadIdx = dim3(state.now, 0, 0);
      swapcontext(&state.scheduler, &self().context);
      if (state.error[0]) return false;
      all_done = all_done && self().done;
    }
    if (all_done) return true;
    if (state.progress == before) {
      for (int i = 0; i < n; ++i)
        if (!state.threads[i]->done)
          std::snprintf(state.error, sizeof state.error,
                        "block (%u, %u, %u): threads wait for ever at: %s", blockIdx.x, blockIdx.y,
                        blockIdx.z, state.threads[i]->waits);
      return false;
    }
  }
}

template <typename T>
const T& aligned(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % alignof(T)) fail("a vector on a wrong boundary");
  return *static_cast<const T*>(p);
}

inline float to_float(uint16_t bits) {  // fp16, subnormals and all
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(mantissa), -24);
  const uint32_t wide = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

inline uint16_t to_half(float x) {
  if (std::isnan(x)) return 0x7fff;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  x = std::fabs(x);
  if (x >= 65520.0f) return sign | 0x7c00;
  int exponent;
  std::frexp(x, &exponent);
  if (x == 0 || exponent < -13) exponent = -13;  // below 2^-14 steps stay 2^-24
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(x, 11 - exponent)));
  return sign | static_cast<uint16_t>(((exponent + 13) << 10) + steps);
}

}  // namespace emulate

extern "C" {
__attribute__((weak)) int64_t EMULATE_ORDER = 0;  // 1: the last thread of a block runs first
__attribute__((weak)) const char* emulate_error() { return emulate::state.error; }
}

template <typename... P, typename... A>
int launch(void (*kernel)(P...), dim3 grid, int threads, void*, A... given) {
  using namespace emulate;
  state.error[0] = 0;
  state.body = [=] { kernel(given...); };
  gridDim = grid;
  const int64_t n = int64_t{grid.x} * grid.y * grid.z;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<unsigned>(EMULATE_ORDER ? n - 1 - i : i);
    blockIdx = dim3(at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y);
    if (!run_block(threads, EMULATE_ORDER != 0)) return LAUNCH_FAILED;
  }
  return 0;
}

inline void sync_block() { emulate::meet(emulate::state.block, "sync_block"); }
inline void sync_warp() { emulate::meet(emulate::warp(), "sync_warp"); }

template <int N>
Words<N> load(const void* p) {
  return emulate::aligned<Words<N>>(p);
}
inline float load_fresh(const float* p) { return *p; }
template <int N>
Words<N> peek(const void* p) {
  return emulate::aligned<Words<N>>(p);
}

using SharedAddress = uint8_t*;
inline SharedAddress shared_address(void* p) { return static_cast<uint8_t*>(p); }
inline void async_copy16(SharedAddress shared, const void* global) {
  emulate::aligned<Words<4>>(shared);
  emulate::aligned<Words<4>>(global);
  emulate::self().groups.back().push_back({shared, global});
}
inline void async_commit() { emulate::self().groups.emplace_back(); }
template <int PENDING>
void async_wait() {
  auto& groups = emulate::self().groups;
  while (groups.size() > PENDING + 1) {
    for (const emulate::Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
    groups.erase(groups.begin());
  }
}

inline float as_float(int32_t x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline int32_t as_int(float x) {
  int32_t y;
  std::memcpy(&y, &x, 4);
  return y;
}

inline int shuffle_xor(int x, int mask) {
  const emulate::Shown<1> all("shuffle", {static_cast<uint32_t>(x)});
  return static_cast<int>(all.of(emulate::lane() ^ mask)[0]);
}
inline float shuffle_xor(float x, int mask) { return as_float(shuffle_xor(as_int(x), mask)); }

inline uint32_t transpose8x8(uint32_t x) {
  const emulate::Shown<1> all("transpose8x8", {x});
  const int row = emulate::lane() / 4, quad = emulate::lane() % 4;
  uint32_t y = 0;
  for (int i = 0; i < 2; ++i) {  // element (2 quad + i, row)
    const uint32_t pair = all.of((2 * quad + i) * 4 + row / 2)[0];
    y |= (pair >> 16 * (row % 2) & 0xffff) << 16 * i;
  }
  return y;
}

inline float float_of(Fp16, uint32_t x) { return emulate::to_float(static_cast<uint16_t>(x)); }
inline float float_of(Bf16, uint32_t x) { return as_float(static_cast<int32_t>(x << 16)); }
inline uint16_t bits_of(Fp16, float x) { return emulate::to_half(x); }
inline uint16_t bits_of(Bf16, float x) {
  const auto bits = static_cast<uint32_t>(as_int(x));
  if (std::isnan(x)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace emulate {
// c[i] += sum over k of a(row of c[i], k) b(k, column of c[i]); PER elements in a register.
template <int PER, typename C, typename A, typename B>
void multiply(const char* what, C (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
              A element_a, B element_b) {
  const Shown<6> all(what, {a[0], a[1], a[2], a[3], b0, b1});
  for (int i = 0; i < 4; ++i) {
    const int m = lane() / 4 + 8 * (i / 2), n = lane() % 4 * 2 + i % 2;
    C sum = 0;
    for (int k = 0; k < 8 * PER; ++k) {
      const int quad = k / PER % 4, high = k / (4 * PER);
      sum += element_a(all.of(m % 8 * 4 + quad)[m / 8 + 2 * high], k % PER) *
             element_b(all.of(n * 4 + quad)[4 + high], k % PER);
    }
    c[i] += sum;
  }
}
}  // namespace emulate

inline void mma_bytes(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                      const int32_t (&c)[4]) {
  std::memcpy(d, c, sizeof d);
  emulate::multiply<4>(
      "mma_bytes", d, a, b0, b1,
      [](uint32_t x, int i) { return static_cast<int32_t>(x >> 8 * i & 0xff); },
      [](uint32_t x, int i) { return static_cast<int32_t>(static_cast<int8_t>(x >> 8 * i)); });
}

template <typename T>
void mma_halves(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto element = [](uint32_t x, int i) { return float_of(T{}, x >> 16 * i & 0xffff); };
  emulate::multiply<2>("mma_halves", c, a, b0, b1, element, element);
}

inline void keep(const uint8_t*&) {}
inline int32_t rounded(float x) { return static_cast<int32_t>(std::nearbyint(x)); }
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }
inline float power2(float x) { return std::exp2(x); }
inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t both = a | static_cast<uint64_t>(b) << 32;
  uint32_t y = 0;
  for (int i = 0; i < 4; ++i)
    y |= static_cast<uint32_t>(both >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i;
  return y;
}

inline int arrive(int32_t* counter) { return (*counter)++; }
