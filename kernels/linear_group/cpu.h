// y = x @ W.T with W in groups of 32 inputs: 4, 5 or 8 bit codes, an fp16 scale per group and, if
// `shifted`, an fp16 shift. See spec.py for the layout. x is rounded to 8 bits in the same groups.
#pragma once
#include <algorithm>
#include <type_traits>
#include "../native/simd.h"

namespace linear_group {

constexpr int GROUP = 32;
constexpr int LANES = simd::LANES;
constexpr int TILE = 32;  // outputs whose codes for one group lie side by side
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

constexpr int MANY = 16;  // rows whose sums for a tile stay in the first cache

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

// Codes of the last 16 inputs of a group come times 2^SCALED.
template <int BITS>
constexpr int SCALED = BITS == 4 ? simd::HIGH : BITS == 5 ? simd::HIGH_FIFTH : 0;

// A group's codes: vectors of 16 outputs x 4 inputs, in `first` of inputs 4 j to 4 j + 3, in `last` of
// inputs 16 + 4 j to 16 + 4 j + 3. Reads line by line, and asks for the line that is `ahead` bytes on.
template <int BITS>
inline void unpack(const uint8_t* p, int ahead, simd::Codes (&first)[4][PARTS],
                   simd::Codes (&last)[4][PARTS]) {
  using namespace simd;
  auto next = [&]() __attribute__((always_inline)) {
    ask(p + ahead);
    const Codes line = codes(p);
    p += 64;
    return line;
  };
  Codes more[PARTS];
  if constexpr (BITS == 5)
    for (int t = 0; t < PARTS; ++t) more[t] = next();
  auto vectors = [&](auto place) __attribute__((always_inline)) {
    constexpr int J = decltype(place)::value;
    for (int t = 0; t < PARTS; ++t) {
      const Codes v = next();
      if constexpr (BITS == 8) first[J][t] = v;
      if constexpr (BITS == 4) first[J][t] = low(v), last[J][t] = high(v);
      if constexpr (BITS == 5) {
        const Codes bits = fifths<J>(more[t]);
        first[J][t] = low(v, bits), last[J][t] = high(v, bits);
      }
    }
    if constexpr (BITS == 8)
      for (int t = 0; t < PARTS; ++t) last[J][t] = next();
  };
  vectors(std::integral_constant<int, 0>{});
  vectors(std::integral_constant<int, 1>{});
  vectors(std::integral_constant<int, 2>{});
  vectors(std::integral_constant<int, 3>{});
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

// Bytes between what is read and what is asked for. One or two rows keep up with memory, which follows a
// straight stream by itself if it sees the lines in order: asking a little ahead shows them so, where 17
// loads that each stride over groups hide it. More rows compute longer than the processor looks ahead.
constexpr int AHEAD = 256, FAR_AHEAD = 8192;

// A tile for n rows, at most MANY: R, or any number where R is 0. Its weights are one straight stream.
template <int BITS, bool SHIFTED, int R>
__attribute__((noinline)) void rows(const Weight& w, int tile, const Rounded& x, int row, int n,
                                    const float* bias, Into into, float* y, int64_t stride) {
  using namespace simd;
  constexpr int BYTES = group_bytes(BITS, SHIFTED), CODES = GROUP * TILE * BITS / 8;
  constexpr int STEP = R > 0 ? R : 1;
  if constexpr (R > 0) n = R;
  const int ahead = n <= 2 ? AHEAD : FAR_AHEAD;
  const uint8_t* at = w.data + tile * tile_bytes(w);
  int64_t i = x.at(row, n_groups(w));
  F acc[R > 0 ? R : MANY][PARTS];
  for (int r = 0; r < n; ++r)
    for (int t = 0; t < PARTS; ++t) acc[r][t] = zero();
  for (int g = 0; g < n_groups(w); ++g, i += x.width, at += BYTES) {
    const auto* scales = reinterpret_cast<const uint16_t*>(at + CODES);
    Codes first[4][PARTS], last[4][PARTS];
    unpack<BITS>(at, ahead, first, last);
    for (int line = CODES; line < BYTES; line += 64) ask(at + ahead + line);
    F by[PARTS], shift[PARTS];
    for (int t = 0; t < PARTS; ++t) {
      by[t] = half(scales + t * LANES);
      if constexpr (SHIFTED) shift[t] = half(scales + TILE + t * LANES);
    }
#pragma GCC unroll 1
    for (int r = 0; r < n; r += STEP) {
      I one[STEP][PARTS], two[STEP][PARTS];
#pragma GCC unroll 4
      for (int k = 0; k < STEP; ++k) {
        const I start = SHIFTED ? iset(0) : shifted<BITS - 1>(x.minus + i + r + k);
        for (int t = 0; t < PARTS; ++t) one[k][t] = start, two[k][t] = iset(0);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
#pragma GCC unroll 4
        for (int k = 0; k < STEP; ++k) {
          const int8_t* in = x.codes + (i + r + k) * GROUP + 4 * j;
          const Inputs a = inputs(in), b = inputs(in + LANES);
          for (int t = 0; t < PARTS; ++t) {
            one[k][t] = dot<BITS == 8>(one[k][t], first[j][t], a);
            two[k][t] = dot<BITS == 8>(two[k][t], last[j][t], b);
          }
        }
#pragma GCC unroll 4
      for (int k = 0; k < STEP; ++k) {
        const F scale = set(x.scale[i + r + k]);
        for (int t = 0; t < PARTS; ++t) {
          F& sum = acc[r + k][t];
          const I whole = iadd(one[k][t], right<SCALED<BITS>>(two[k][t]));
          sum = fma(mul(to_float(whole), scale), by[t], sum);
          if constexpr (SHIFTED) sum = fma(shift[t], set(x.total[i + r + k]), sum);
        }
      }
    }
  }
  for (int r = 0; r < n; ++r)
    for (int t = 0; t < PARTS; ++t)
      put(acc[r][t], tile * TILE + t * LANES, w.n_out, bias, into, y + (row + r) * stride);
}

// Tiles [first, last) for all n rows.
template <int BITS, bool SHIFTED>
inline void tiles(const Weight& w, int first, int last, const Rounded& x, int n, const float* bias,
                  Into into, float* y, int64_t stride) {
  for (int tile = first; tile < last; ++tile)
    for (int r = 0; r < n; r += MANY) {
      const int some = std::min(n - r, MANY);
      if (some == 1) rows<BITS, SHIFTED, 1>(w, tile, x, r, some, bias, into, y, stride);
      else if (some == 2) rows<BITS, SHIFTED, 2>(w, tile, x, r, some, bias, into, y, stride);
      else rows<BITS, SHIFTED, 0>(w, tile, x, r, some, bias, into, y, stride);
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
