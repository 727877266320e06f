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

// Rows of x rounded, as a product wants them: for every pair of groups and 8 rows a record of
//   codes   32 lanes x 16 bytes: group q, then inputs 0-15 and 16-31 by their quads
//   scales  fp32 [4 quads][q][2], of rows 2 quad and 2 quad + 1
//   starts  int32 [q][4 quads][4]: where the sums of those two rows begin, twice; or, for shifted
//           weights, fp32: the sum of the group's activations as rounded
namespace record {
constexpr int SCALES = 512;
constexpr int STARTS = SCALES + 64;
constexpr int BYTES = STARTS + 128;
}  // namespace record

// Eight threads share a group. zero: what a code stands for 0; 0 for shifted weights.
template <Kind KIND>
__global__ void __launch_bounds__(256) round_rows(const void* x, int64_t stride, int n, int n_in,
                                                  int tiles, int pairs, int zero, uint8_t* to) {
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
  if (row >= tiles * ROWS) return;
  const int q = group % 2;
  uint8_t* mine = to + static_cast<int64_t>(group / 2 * tiles + row / ROWS) * record::BYTES;
  const int lane = row % ROWS * 4 + part % 4;
  *reinterpret_cast<uint32_t*>(mine + lane * 16 + q * 8 + part / 4 * 4) = word;
  if (part == 0) {
    const int quad = row % ROWS / 2, odd = row % 2;
    const float scale = top / 127.0f;
    reinterpret_cast<float*>(mine + record::SCALES)[quad * 4 + q * 2 + odd] = scale;
    auto* starts = reinterpret_cast<int32_t*>(mine + record::STARTS) + q * 16 + quad * 4;
    starts[odd] = starts[2 + odd] =
        zero ? MAGIC - zero * sum : as_int(scale * static_cast<float>(sum));
  }
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
                                                         const uint8_t* x, Output out) {
  using F = Format<BITS, SHIFTED>;
  constexpr int STEP_BYTES = F::STEP * F::PAIR;
  static_assert(WARPS * STAGES * STEP_BYTES >= WARPS * N * ROWS * TILE * 4, "partial sums fit");
  SHARED(ring, WARPS * STAGES * STEP_BYTES);
  const int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  const int row = lane / 4, quad = lane % 4;
  uint8_t* mine = ring + warp * STAGES * STEP_BYTES;

  // What this lane copies next, and how many bytes there are from there to the tile's end; the last
  // of a step's pieces is for some lanes only.
  constexpr int WHOLE = STEP_BYTES / (16 * LANES) * 16 * LANES;
  const SharedAddress copied = shared_address(mine + 16 * lane);
  const uint8_t* from = weight + static_cast<int64_t>(blockIdx.x) * pairs * F::PAIR +
                        warp * STEP_BYTES + 16 * lane;
  int left = pairs * F::PAIR - warp * STEP_BYTES - 16 * lane;
  int left_last = WHOLE + 16 * lane < STEP_BYTES ? left : 0;
  const auto fetch = [&](int slot) {
#pragma unroll
    for (int i = 0; i < STEP_BYTES; i += 16 * LANES)
      if (i < (i < WHOLE ? left : left_last)) async_copy16(copied + (slot + i), from + i);
    from += WARPS * STEP_BYTES;
    left -= WARPS * STEP_BYTES;
    left_last -= WARPS * STEP_BYTES;
    async_commit();
  };

  float acc[N][4] = {};
  const uint8_t* by_lane = x + warp * F::STEP * N * record::BYTES + 16 * lane;
  const uint8_t* by_quad = x + warp * F::STEP * N * record::BYTES + record::SCALES + 16 * quad;
  const auto add_pair = [&](int slot, int i) {
    const uint8_t* at = mine + slot + i * F::PAIR;
    const auto by = peek<2>(at + F::CODES + F::FIFTH + 8 * row);
    Words<2> shift = {};
    if constexpr (SHIFTED) shift = peek<2>(at + F::CODES + F::FIFTH + F::SCALES + 8 * row);
    Words<4> rows[N], scales[N];
#pragma unroll
    for (int t = 0; t < N; ++t) {
      rows[t] = load<4>(by_lane + (i * N + t) * record::BYTES);
      scales[t] = load<4>(by_quad + (i * N + t) * record::BYTES);
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      uint32_t a[4];
      Codes<BITS, SHIFTED>(at, lane, q).unpack(a, q);
      const float scale[2] = {half_of<Fp16>(by.word[q], 0), half_of<Fp16>(by.word[q], 1)};
      const float offset[2] = {half_of<Fp16>(shift.word[q], 0), half_of<Fp16>(shift.word[q], 1)};
#pragma unroll
      for (int t = 0; t < N; ++t) {
        const auto begun = load<4>(by_quad + (i * N + t) * record::BYTES + 64 + 64 * q);
        int32_t start[4], sums[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          start[j] = SHIFTED ? MAGIC : static_cast<int32_t>(begun.word[j]);
        mma_bytes(sums, a, rows[t].word[2 * q], rows[t].word[2 * q + 1], start);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float of_row = as_float(static_cast<int32_t>(scales[t].word[2 * q + j % 2]));
          const float sum = as_float(sums[j]) - as_float(MAGIC);
          acc[t][j] = fused(sum * of_row, scale[j / 2], acc[t][j]);
          if constexpr (SHIFTED)
            acc[t][j] = fused(offset[j / 2], as_float(static_cast<int32_t>(begun.word[j])),
                              acc[t][j]);
        }
      }
    }
  };

#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) fetch(s * STEP_BYTES);
  int slot = 0, free = (STAGES - 1) * STEP_BYTES;  // where in the ring
  for (int pair = warp * F::STEP; pair < pairs; pair += WARPS * F::STEP) {
    async_wait<STAGES - 2>();
    sync_warp();  // this step has come for every lane, and every lane is done with the one before
    fetch(free);
    if constexpr (N == 4) {  // unrolled it takes too many registers for two blocks at once
#pragma unroll 1
      for (int i = 0; i < F::STEP && pair + i < pairs; ++i) add_pair(slot, i);
    } else {
#pragma unroll
      for (int i = 0; i < F::STEP; ++i)
        if (pair + i < pairs) add_pair(slot, i);
    }
    by_lane += WARPS * F::STEP * N * record::BYTES;
    by_quad += WARPS * F::STEP * N * record::BYTES;
    keep(by_lane);
    keep(by_quad);
    keep(from);
    free = slot;
    slot = slot == (STAGES - 1) * STEP_BYTES ? 0 : slot + STEP_BYTES;
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
int run(const Weight& w, const uint8_t* x, int row_tiles, const Output& out, void* stream) {
  const dim3 grid(w.tiles);
  constexpr int threads = 32 * WARPS;
  if (row_tiles == 1)
    return launch(product<BITS, SHIFTED, 1>, grid, threads, stream, w.data, w.pairs, x, out);
  if (row_tiles == 2)
    return launch(product<BITS, SHIFTED, 2>, grid, threads, stream, w.data, w.pairs, x, out);
  return launch(product<BITS, SHIFTED, 4>, grid, threads, stream, w.data, w.pairs, x, out);
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

// to: records of row_tiles (1, 2 or 4) times 8 rows. bits, shifted: of the weight to be met.
int linear_group_round(const void* x, int64_t kind, int64_t stride, int64_t n, int64_t n_in,
                       int64_t bits, int64_t shifted, int64_t row_tiles, void* to, void* stream) {
  using namespace linear_group;
  const int tiles = static_cast<int>(row_tiles), pairs = weight_of(nullptr, n_in, 0).pairs;
  const int zero = shifted ? 0 : 1 << (bits - 1);
  const dim3 grid(blocks(static_cast<int64_t>(tiles) * ROWS * pairs * 2 * 8));
  auto* records = static_cast<uint8_t*>(to);
  const int many = static_cast<int>(n), wide = static_cast<int>(n_in);
  auto* kernel = kind == FP32   ? round_rows<FP32>
                 : kind == FP16 ? round_rows<FP16>
                                : round_rows<BF16>;
  return launch(kernel, grid, 256, stream, x, stride, many, wide, tiles, pairs, zero, records);
}

int linear_group_product(const void* weight, int64_t bits, int64_t shifted, int64_t n_in,
                         int64_t n_out, const void* records, int64_t row_tiles, int64_t n,
                         const void* bias, void* y, int64_t kind, int64_t stride, void* stream) {
  using namespace linear_group;
  const Weight w = weight_of(weight, n_in, n_out);
  const Output out = {y, static_cast<Kind>(kind), stride, static_cast<const float*>(bias),
                      static_cast<int>(n), w.n_out};
  const auto* x = static_cast<const uint8_t*>(records);
  const int tiles = static_cast<int>(row_tiles);
  if (bits == 4 && !shifted) return run<4, false>(w, x, tiles, out, stream);
  if (bits == 4) return run<4, true>(w, x, tiles, out, stream);
  if (bits == 5 && !shifted) return run<5, false>(w, x, tiles, out, stream);
  if (bits == 5) return run<5, true>(w, x, tiles, out, stream);
  if (bits == 8 && !shifted) return run<8, false>(w, x, tiles, out, stream);
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
