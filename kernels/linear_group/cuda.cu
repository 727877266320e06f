// y = x @ W.T for 1 to 32 rows on tensor cores, W in groups of 32 inputs (see cuda.py for the
// layout). A group is exactly one m16n8k32 product of bytes: 16 outputs, 32 inputs, 8 rows. x is
// rounded to 8 bits per row and group first, as on the CPU, so the sum of a group is an exact
// integer and a row's bits are the same alone and in any company.
#include <type_traits>
#include "../native/device.cuh"

namespace linear_group {

constexpr int GROUP = 32;
constexpr int TILE = 16;    // outputs of a block
constexpr int ROWS = 8;     // rows of x in one product
constexpr int WARPS = 8;    // of a block; each takes every eighth step along n_in
constexpr int STAGES = 3;   // steps of a warp in flight or in use
constexpr int LANES = 32;
constexpr int MAGIC = 0x4b400000;  // as a float 1.5 * 2^23: integers below 2^22 add to it exactly

template <int BITS, bool SHIFTED>
struct Format {
  static constexpr int ZERO = SHIFTED ? 0 : 1 << (BITS - 1);
  static constexpr int CODES = BITS == 8 ? 1024 : 512;
  static constexpr int FIFTH = BITS == 5 ? 128 : 0;
  static constexpr int SCALES = 64;
  static constexpr int PAIR = CODES + FIFTH + SCALES * (SHIFTED ? 2 : 1);  // bytes of two groups
  static constexpr int STEP = BITS == 8 ? 1 : 2;                           // pairs of a step
};

// The codes of group q of a pair, as the product wants them.
template <int BITS, bool SHIFTED>
struct Codes {
  Words<4> low;
  uint32_t fifth;

  DEVICE Codes(const uint8_t* pair, int lane, int q) {
    if constexpr (BITS == 8) {
      low = peek<4>(pair + 512 * q + 16 * lane);
    } else {
      low = peek<4>(pair + 16 * lane);
    }
    if constexpr (BITS == 5) fifth = peek<1>(pair + 512 + 4 * lane).word[0];
  }

  DEVICE void unpack(uint32_t (&a)[4], int q) const {
    if constexpr (BITS == 8) {
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = low.word[r];
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        a[r] = low.word[2 * q + r % 2] >> 4 * (r / 2) & 0x0f0f0f0fu;
        if constexpr (BITS == 5) a[r] |= fifth >> (4 * q + r) << 4 & 0x10101010u;
      }
    }
  }
};

// x rounded: codes [rows / 8][pairs][lane][group of the pair][8], and for every group and row its
// scale and the sum of its codes, [rows / 8][pairs][2][8][2]. Eight threads share a group.
template <Kind KIND>
__global__ void __launch_bounds__(256) round_rows(const void* x, int64_t stride, int n, int n_in,
                                                  int rows, int pairs, uint8_t* codes,
                                                  Words<2>* scales) {
  using T = std::conditional_t<KIND == FP16, Fp16, Bf16>;
  const int at = blockIdx.x * 256 + threadIdx.x;
  const int part = at % 8, group = at / 8 % (2 * pairs), row = at / 8 / (2 * pairs);
  float v[4] = {};
  if (row < n && group * GROUP < n_in) {
    const int64_t first = row * stride + group * GROUP + part * 4;
    if constexpr (KIND == FP32) {
      const auto four = load<4>(static_cast<const float*>(x) + first);
      for (int i = 0; i < 4; ++i) v[i] = as_float(static_cast<int32_t>(four.word[i]));
    } else {
      const auto four = load<2>(static_cast<const uint16_t*>(x) + first);
      for (int i = 0; i < 4; ++i) v[i] = half_of<T>(four.word[i / 2], i % 2);
    }
  }
  float top = 0.0f;
  for (int i = 0; i < 4; ++i) top = fmaxf(top, fabsf(v[i]));
  for (int mask = 1; mask < 8; mask *= 2) top = fmaxf(top, shuffle_xor(top, mask));
  const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
  uint32_t word = 0;
  int sum = 0;
  for (int i = 0; i < 4; ++i) {
    const int code = rounded(v[i] * inverse);
    sum += code;
    word |= (static_cast<uint32_t>(code) & 0xffu) << 8 * i;
  }
  for (int mask = 1; mask < 8; mask *= 2) sum += shuffle_xor(sum, mask);
  if (row >= rows) return;
  const int64_t pair = static_cast<int64_t>(row / ROWS) * pairs + group / 2;
  const int64_t lane = pair * LANES + row % ROWS * 4 + part % 4;
  *reinterpret_cast<uint32_t*>(codes + lane * 16 + group % 2 * 8 + part / 4 * 4) = word;
  if (part == 0)
    scales[(pair * 2 + group % 2) * ROWS + row % ROWS] = {
        {static_cast<uint32_t>(as_int(top / 127.0f)), static_cast<uint32_t>(sum)}};
}

struct Output {
  void* y;
  Kind kind;
  int64_t stride;
  const float* bias;  // or null
  int n, n_out;
};

// One block: TILE outputs, all of n_in, 8 * N rows.
template <int BITS, bool SHIFTED, int N>
__global__ void __launch_bounds__(32 * WARPS, 2) product(const uint8_t* weight, int pairs,
                                                      const uint8_t* codes, const uint8_t* scales,
                                                      Output out) {
  using F = Format<BITS, SHIFTED>;
  constexpr int STEP_BYTES = F::STEP * F::PAIR;
  static_assert(WARPS * STAGES * STEP_BYTES >= WARPS * N * ROWS * TILE * 4, "partial sums fit");
  SHARED(ring, WARPS * STAGES * STEP_BYTES);
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  const int row = lane / 4, quad = lane % 4;
  const uint8_t* tile = weight + static_cast<int64_t>(blockIdx.x) * pairs * F::PAIR;
  uint8_t* mine = ring + warp * STAGES * STEP_BYTES;
  const int steps = (pairs + F::STEP - 1) / F::STEP;

  const auto fetch = [&](int step, int slot) {
    if (step < steps) {
      const int n_pairs = pairs - step * F::STEP < F::STEP ? pairs - step * F::STEP : F::STEP;
      for (int i = 16 * lane; i < n_pairs * F::PAIR; i += 16 * LANES)
        async_copy16(mine + slot * STEP_BYTES + i,
                     tile + static_cast<int64_t>(step) * STEP_BYTES + i);
    }
    async_commit();
  };

  float acc[N][4] = {};
  for (int s = 0; s < STAGES - 1; ++s) fetch(warp + s * WARPS, s);
  int slot = 0;
  for (int step = warp; step < steps; step += WARPS) {
    async_wait<STAGES - 2>();
    sync_warp();  // this step has come for every lane, and the slot before it is read
    fetch(step + (STAGES - 1) * WARPS, slot == 0 ? STAGES - 1 : slot - 1);
#pragma unroll
    for (int i = 0; i < F::STEP; ++i) {
      const int pair = step * F::STEP + i;
      if (pair >= pairs) break;
      const uint8_t* at = mine + slot * STEP_BYTES + i * F::PAIR;
      const auto by = peek<2>(at + F::CODES + F::FIFTH + 8 * row);
      Words<2> shift = {};
      if constexpr (SHIFTED) shift = peek<2>(at + F::CODES + F::FIFTH + F::SCALES + 8 * row);
      Words<4> x[N];
#pragma unroll
      for (int t = 0; t < N; ++t)
        x[t] = load<4>(codes + ((static_cast<int64_t>(t) * pairs + pair) * LANES + lane) * 16);
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        uint32_t a[4];
        Codes<BITS, SHIFTED>(at, lane, q).unpack(a, q);
        const float scale[2] = {half_of<Fp16>(by.word[q], 0), half_of<Fp16>(by.word[q], 1)};
        float offset[2] = {};
        if constexpr (SHIFTED) {
          offset[0] = half_of<Fp16>(shift.word[q], 0);
          offset[1] = half_of<Fp16>(shift.word[q], 1);
        }
#pragma unroll
        for (int t = 0; t < N; ++t) {
          const int64_t group = (static_cast<int64_t>(t) * pairs + pair) * 2 + q;
          const auto of = load<4>(scales + (group * ROWS + 2 * quad) * 8);  // of two rows
          const int start[2] = {MAGIC - F::ZERO * static_cast<int>(of.word[1]),
                                MAGIC - F::ZERO * static_cast<int>(of.word[3])};
          int32_t c[4] = {start[0], start[1], start[0], start[1]};
          mma_bytes(c, a, x[t].word[2 * q], x[t].word[2 * q + 1]);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float of_row = as_float(static_cast<int32_t>(of.word[j % 2 * 2]));
            const float sum = as_float(c[j]) - as_float(MAGIC);
            acc[t][j] = fused(sum * of_row, scale[j / 2], acc[t][j]);
            if constexpr (SHIFTED) {
              const auto total = static_cast<float>(static_cast<int32_t>(of.word[j % 2 * 2 + 1]));
              acc[t][j] = fused(offset[j / 2], of_row * total, acc[t][j]);
            }
          }
        }
      }
    }
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }

  async_wait<0>();
  sync_block();  // nobody reads the ring any more
  auto* parts = reinterpret_cast<float*>(ring);
#pragma unroll
  for (int t = 0; t < N; ++t)
    for (int j = 0; j < 4; ++j)
      parts[((warp * N + t) * ROWS + 2 * quad + j % 2) * TILE + row + 8 * (j / 2)] = acc[t][j];
  sync_block();
  for (int i = threadIdx.x; i < N * ROWS * TILE; i += 32 * WARPS) {
    const int of_row = i / TILE, output = blockIdx.x * TILE + i % TILE;
    if (of_row >= out.n || output >= out.n_out) continue;
    float sum = 0.0f;
    for (int w = 0; w < WARPS; ++w) sum += parts[w * N * ROWS * TILE + i];
    if (out.bias) sum += out.bias[output];
    store(out.kind, out.y, of_row * out.stride + output, sum);
  }
}

// The weight itself, [n_out, n_in], for prompts: one warp writes 16 outputs of two groups.
template <int BITS, bool SHIFTED>
__global__ void __launch_bounds__(256) unpack(const uint8_t* weight, int pairs, int64_t n_warps,
                                              int n_in, int n_out, void* to, Kind kind) {
  using F = Format<BITS, SHIFTED>;
  const int lane = threadIdx.x % LANES, row = lane / 4, quad = lane % 4;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / LANES;
  if (warp >= n_warps) return;
  const uint8_t* at = weight + warp * F::PAIR;
  const int64_t first_output = warp / pairs * TILE;
  const int first_input = static_cast<int>(warp % pairs) * 2 * GROUP;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    uint32_t a[4];
    Codes<BITS, SHIFTED>(at, lane, q).unpack(a, q);
    const auto by = peek<2>(at + F::CODES + F::FIFTH + 8 * row).word[q];
    uint32_t shift = 0;
    if constexpr (SHIFTED) shift = peek<2>(at + F::CODES + F::FIFTH + 64 + 8 * row).word[q];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t output = first_output + row + r % 2 * 8;
      const int input = first_input + q * GROUP + r / 2 * 16 + 4 * quad;
      if (output >= n_out || input >= n_in) continue;
      const float scale = half_of<Fp16>(by, r % 2);
      const float offset = half_of<Fp16>(shift, r % 2);
      for (int k = 0; k < 4; ++k) {
        const auto code = static_cast<float>(static_cast<int>(a[r] >> 8 * k & 0xffu) - F::ZERO);
        store(kind, to, output * n_in + input + k, code * scale + offset);
      }
    }
  }
}

struct Weight {
  const uint8_t* data;
  int pairs, tiles, n_in, n_out;
};

inline int blocks(int64_t threads) { return static_cast<int>((threads + 255) / 256); }

template <int BITS, bool SHIFTED>
int run(const Weight& w, const uint8_t* codes, const uint8_t* scales, int row_tiles,
        const Output& out, void* stream) {
  const dim3 grid(w.tiles);
  constexpr int threads = 32 * WARPS;
  if (row_tiles == 1)
    return launch(product<BITS, SHIFTED, 1>, grid, threads, stream, w.data, w.pairs, codes, scales,
                  out);
  if (row_tiles == 2)
    return launch(product<BITS, SHIFTED, 2>, grid, threads, stream, w.data, w.pairs, codes, scales,
                  out);
  return launch(product<BITS, SHIFTED, 4>, grid, threads, stream, w.data, w.pairs, codes, scales,
                out);
}

template <int BITS, bool SHIFTED>
int write(const Weight& w, void* to, Kind kind, void* stream) {
  const int64_t warps = static_cast<int64_t>(w.tiles) * w.pairs;
  return launch(unpack<BITS, SHIFTED>, dim3(blocks(32 * warps)), 256, stream, w.data, w.pairs,
                warps, w.n_in, w.n_out, to, kind);
}

inline Weight weight_of(const void* data, int64_t n_in, int64_t n_out) {
  return {static_cast<const uint8_t*>(data), static_cast<int>((n_in + 2 * GROUP - 1) / (2 * GROUP)),
          static_cast<int>((n_out + TILE - 1) / TILE), static_cast<int>(n_in),
          static_cast<int>(n_out)};
}

constexpr int INVALID = 1;  // cudaErrorInvalidValue

}  // namespace linear_group

extern "C" {

// codes and scales: room for `row_tiles` (1, 2 or 4) times 8 rows, as round_rows says.
int linear_group_round(const void* x, int64_t kind, int64_t stride, int64_t n, int64_t n_in,
                       int64_t row_tiles, void* codes, void* scales, void* stream) {
  using namespace linear_group;
  const int rows = static_cast<int>(row_tiles) * ROWS;
  const int pairs = weight_of(nullptr, n_in, 0).pairs;
  const dim3 grid(blocks(static_cast<int64_t>(rows) * pairs * 2 * 8));
  auto* to = static_cast<uint8_t*>(codes);
  auto* by = static_cast<Words<2>*>(scales);
  const int many = static_cast<int>(n), wide = static_cast<int>(n_in);
  if (kind == FP32)
    return launch(round_rows<FP32>, grid, 256, stream, x, stride, many, wide, rows, pairs, to, by);
  if (kind == FP16)
    return launch(round_rows<FP16>, grid, 256, stream, x, stride, many, wide, rows, pairs, to, by);
  return launch(round_rows<BF16>, grid, 256, stream, x, stride, many, wide, rows, pairs, to, by);
}

int linear_group_product(const void* weight, int64_t bits, int64_t shifted, int64_t n_in,
                         int64_t n_out, const void* codes, const void* scales, int64_t row_tiles,
                         int64_t n, const void* bias, void* y, int64_t kind, int64_t stride,
                         void* stream) {
  using namespace linear_group;
  const Weight w = weight_of(weight, n_in, n_out);
  const Output out = {y, static_cast<Kind>(kind), stride, static_cast<const float*>(bias),
                      static_cast<int>(n), w.n_out};
  const auto* x = static_cast<const uint8_t*>(codes);
  const auto* by = static_cast<const uint8_t*>(scales);
  const int tiles = static_cast<int>(row_tiles);
  if (bits == 4 && !shifted) return run<4, false>(w, x, by, tiles, out, stream);
  if (bits == 4) return run<4, true>(w, x, by, tiles, out, stream);
  if (bits == 5 && !shifted) return run<5, false>(w, x, by, tiles, out, stream);
  if (bits == 5) return run<5, true>(w, x, by, tiles, out, stream);
  if (bits == 8 && !shifted) return run<8, false>(w, x, by, tiles, out, stream);
  return INVALID;
}

int linear_group_unpack(const void* weight, int64_t bits, int64_t shifted, int64_t n_in,
                        int64_t n_out, void* to, int64_t kind, void* stream) {
  using namespace linear_group;
  const Weight w = weight_of(weight, n_in, n_out);
  const auto as = static_cast<Kind>(kind);
  if (bits == 4 && !shifted) return write<4, false>(w, to, as, stream);
  if (bits == 4) return write<4, true>(w, to, as, stream);
  if (bits == 5 && !shifted) return write<5, false>(w, to, as, stream);
  if (bits == 5) return write<5, true>(w, to, as, stream);
  if (bits == 8 && !shifted) return write<8, false>(w, to, as, stream);
  return INVALID;
}
}
