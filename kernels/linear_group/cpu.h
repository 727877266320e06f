// y = x @ W.T with W in groups of 32 inputs: 4, 5 or 8 bit codes, an fp16 scale per group and, if
// `shifted`, an fp16 shift. See spec.py for the layout. x is rounded to 8 bits in the same groups.
#pragma once
#include <algorithm>
#include "../native/simd.h"

namespace linear_group {

constexpr int GROUP = 32;
constexpr int LANES = simd::LANES;
constexpr int TILE = 64;  // outputs whose codes for one group lie side by side
constexpr int PARTS = TILE / LANES;

struct Weight {
  const uint8_t* data;
  int32_t n_in, n_out;  // n_in a multiple of GROUP
  int32_t bits;         // 4, 5 or 8
  int32_t shifted;      // w = scale * code + shift, else w = scale * (code - 2^(bits - 1))
};

inline int n_groups(const Weight& w) { return w.n_in / GROUP; }
inline int n_tiles(const Weight& w) { return (w.n_out + TILE - 1) / TILE; }
constexpr int group_bytes(int bits, bool shifted) {
  return GROUP * TILE * bits / 8 + 2 * TILE * (shifted ? 2 : 1);
}
inline int64_t tile_bytes(const Weight& w) {
  return static_cast<int64_t>(n_groups(w)) * group_bytes(w.bits, w.shifted);
}

constexpr int MANY = 16;  // rows whose sums for 16 outputs stay in the first cache

// Rounded activations in blocks of `width` rows: codes [blocks, groups, width, GROUP]; of each row
// and group the scale, minus the sum of the codes, and scale times sum, [blocks, groups, width].
struct Rounded {
  int8_t* codes;
  float* scale;
  int32_t* minus;
  float* total;
  int width;

  static int width_of(int n) { return std::max(1, std::min(n, MANY)); }
  static int64_t room(int n) { return (n + width_of(n) - 1) / width_of(n) * width_of(n); }
  int64_t at(int row, int groups) const {  // of the row's first group; the next is width further
    return static_cast<int64_t>(row / width) * groups * width + row % width;
  }
};

inline void round_row(const float* x, int n_in, int row, const Rounded& to) {
  using namespace simd;
  int64_t at = to.at(row, n_in / GROUP);
  for (int g = 0; g < n_in / GROUP; ++g, x += GROUP, at += to.width) {
    const F below = load(x), above = load(x + LANES);
    const float top = highest(max(abs(below), abs(above)));
    const F inverse = set(top > 0 ? 127.0f / top : 0.0f);
    const I low = rounded(mul(below, inverse)), high = rounded(mul(above, inverse));
    store_bytes(to.codes + at * GROUP, low);
    store_bytes(to.codes + at * GROUP + LANES, high);
    const int32_t sum = simd::sum(low, high);
    to.scale[at] = top / 127.0f;
    to.minus[at] = -sum;
    to.total[at] = to.scale[at] * static_cast<float>(sum);
  }
}

enum class Into { store, add };

// What a group's codes are for 16 outputs: 8 vectors of 16 outputs x 4 inputs, in order of inputs.
template <int BITS>
inline void unpack(const uint8_t* p, simd::Codes (&codes)[8]) {
  using namespace simd;
  if constexpr (BITS == 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) codes[j] = simd::codes(p + 64 * j);
  } else {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const Codes v = simd::codes(p + 64 * j);
      codes[j] = low(v);
      codes[4 + j] = high(v);
      if constexpr (BITS == 5) {
        codes[j] = fifth(codes[j], p + 256 + 8 * j);
        codes[4 + j] = fifth(codes[4 + j], p + 288 + 8 * j);
      }
    }
  }
}

// 16 outputs of one row, into y + out.
inline void put(simd::F value, int out, int n_out, const float* bias, Into into, float* y) {
  using namespace simd;
  const int n = std::min(LANES, n_out - out);
  y += out;
  if (n == LANES) {
    if (bias) value = add(value, load(bias + out));
    store(y, into == Into::add ? add(load(y), value) : value);
    return;
  }
  float lanes[LANES];
  store(lanes, value);
  for (int i = 0; i < n; ++i) {
    const float one = bias ? lanes[i] + bias[out + i] : lanes[i];
    y[i] = into == Into::add ? y[i] + one : one;
  }
}

// A group's products for 16 outputs, added to the sums of R rows; x: the first row's inputs. Exact, so
// in any order. One instruction loads all codes, one line after the other: prefetchers follow single
// instructions, and an unrolled loop is dozens of them, each of which strides over whole groups.
template <int BITS, int R>
inline void multiply(const uint8_t* p, const int8_t* x, simd::I (&sum)[R]) {
  using namespace simd;
  constexpr int VECTORS = BITS == 8 ? 8 : 4;
  const uint8_t* planes = p + 64 * VECTORS;
#pragma GCC unroll 1
  for (int j = 0; j < VECTORS; ++j, p += 64, x += 4, planes += 8) {
    const Codes v = codes(p);
    if constexpr (BITS == 8) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = dot<true>(sum[r], v, x + r * GROUP);
    } else {
      Codes below = low(v), above = high(v);
      if constexpr (BITS == 5) {
        below = fifth(below, planes);
        above = fifth(above, planes + 32);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sum[r] = dot<false>(sum[r], below, x + r * GROUP);
        sum[r] = dot<false>(sum[r], above, x + r * GROUP + LANES);
      }
    }
  }
}

// R rows, at most 8, and a whole tile: its weights are one straight stream. Where a group's arithmetic
// is longer than the processor looks ahead, the group after the next is asked for.
template <int BITS, bool SHIFTED, int R>
__attribute__((noinline)) void few(const Weight& w, int tile, const Rounded& x, int row,
                                   const float* bias, Into into, float* y, int64_t stride) {
  using namespace simd;
  constexpr int CODES = GROUP * LANES * BITS / 8, BYTES = group_bytes(BITS, SHIFTED);
  constexpr int SHARE = BYTES / PARTS;
  const uint8_t* at = w.data + tile * tile_bytes(w);
  int64_t i = x.at(row, n_groups(w));
  F acc[PARTS][R];
  for (int t = 0; t < PARTS; ++t)
    for (int r = 0; r < R; ++r) acc[t][r] = zero();
  for (int g = 0; g < n_groups(w); ++g, i += x.width, at += BYTES) {
    const auto* scales = reinterpret_cast<const uint16_t*>(at + PARTS * CODES);
#pragma GCC unroll 1
    for (int t = 0; t < PARTS; ++t) {
      if constexpr (R > 1 || BITS == 5)
        for (int line = t * SHARE; line < (t + 1) * SHARE; line += 64)
          __builtin_prefetch(at + 2 * BYTES + line);
      I sum[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = SHIFTED ? iset(0) : shifted<BITS - 1>(x.minus + i + r);
      multiply<BITS>(at + t * CODES, x.codes + i * GROUP, sum);
      const F by = half(scales + t * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        acc[t][r] = fma(mul(to_float(sum[r]), set(x.scale[i + r])), by, acc[t][r]);
      if constexpr (SHIFTED) {
        const F shift = half(scales + TILE + t * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[t][r] = fma(shift, set(x.total[i + r]), acc[t][r]);
      }
    }
  }
  for (int t = 0; t < PARTS; ++t)
    for (int r = 0; r < R; ++r)
      put(acc[t][r], tile * TILE + t * LANES, w.n_out, bias, into, y + (row + r) * stride);
}

constexpr int AHEAD = 4;  // groups: about the time that memory takes

// Many rows: a group's codes are unpacked once for all of them. A part is no straight stream, and its
// arithmetic is longer than the processor looks ahead, so the codes are asked for early.
template <int BITS, bool SHIFTED>
inline void many(const Weight& w, int tile, const Rounded& x, int row, const float* bias, Into into,
                 float* y, int64_t stride) {
  using namespace simd;
  constexpr int CODES = GROUP * LANES * BITS / 8;
  for (int t = 0; t < PARTS; ++t) {
    const uint8_t* at = w.data + tile * tile_bytes(w);
    int64_t i = x.at(row, n_groups(w));
    F acc[MANY];
    for (int r = 0; r < MANY; ++r) acc[r] = zero();
    for (int g = 0; g < n_groups(w); ++g, i += x.width, at += group_bytes(BITS, SHIFTED)) {
      const auto* scales = reinterpret_cast<const uint16_t*>(at + PARTS * CODES) + t * LANES;
      for (int line = 0; line < CODES; line += 64)
        __builtin_prefetch(at + AHEAD * group_bytes(BITS, SHIFTED) + t * CODES + line);
      Codes codes[8];
      unpack<BITS>(at + t * CODES, codes);
      const F by = half(scales);
      const F shift = SHIFTED ? half(scales + TILE) : zero();
      for (int r = 0; r < MANY; ++r) {
        const int8_t* inputs = x.codes + (i + r) * GROUP;
        I one = SHIFTED ? iset(0) : shifted<BITS - 1>(x.minus + i + r), two = iset(0);
#pragma GCC unroll 4
        for (int j = 0; j < 8; j += 2) {
          one = dot<BITS == 8>(one, codes[j], inputs + 4 * j);
          two = dot<BITS == 8>(two, codes[j + 1], inputs + 4 * j + 4);
        }
        acc[r] = fma(mul(to_float(iadd(one, two)), set(x.scale[i + r])), by, acc[r]);
        if constexpr (SHIFTED) acc[r] = fma(shift, set(x.total[i + r]), acc[r]);
      }
    }
    for (int r = 0; r < MANY; ++r)
      put(acc[r], tile * TILE + t * LANES, w.n_out, bias, into, y + (row + r) * stride);
  }
}

// Tiles [first, last) for all n rows.
template <int BITS, bool SHIFTED>
inline void tiles(const Weight& w, int first, int last, const Rounded& x, int n, const float* bias,
                  Into into, float* y, int64_t stride) {
  for (int tile = first; tile < last; ++tile) {
    int r = 0;
    for (; r + MANY <= n; r += MANY) many<BITS, SHIFTED>(w, tile, x, r, bias, into, y, stride);
    for (; r + 8 <= n; r += 8) few<BITS, SHIFTED, 8>(w, tile, x, r, bias, into, y, stride);
    for (; r + 4 <= n; r += 4) few<BITS, SHIFTED, 4>(w, tile, x, r, bias, into, y, stride);
    if (n - r == 3) few<BITS, SHIFTED, 3>(w, tile, x, r, bias, into, y, stride);
    if (n - r == 2) few<BITS, SHIFTED, 2>(w, tile, x, r, bias, into, y, stride);
    if (n - r == 1) few<BITS, SHIFTED, 1>(w, tile, x, r, bias, into, y, stride);
  }
}

inline void run(const Weight& w, int first, int last, const Rounded& x, int n, const float* bias,
                Into into, float* y, int64_t stride) {
  if (w.bits == 4 && w.shifted) tiles<4, true>(w, first, last, x, n, bias, into, y, stride);
  else if (w.bits == 4) tiles<4, false>(w, first, last, x, n, bias, into, y, stride);
  else if (w.bits == 5 && w.shifted) tiles<5, true>(w, first, last, x, n, bias, into, y, stride);
  else if (w.bits == 5) tiles<5, false>(w, first, last, x, n, bias, into, y, stride);
  else tiles<8, false>(w, first, last, x, n, bias, into, y, stride);
}

}  // namespace linear_group
