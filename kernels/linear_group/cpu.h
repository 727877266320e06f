// y = x @ W.T with W in groups of 32 inputs: 4, 5 or 8 bit codes, an fp16 scale per group and, if
// `shifted`, an fp16 shift. See spec.py for the layout. x is rounded to 8 bits in the same groups.
#pragma once
#include <algorithm>
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

}  // namespace linear_group

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include "avx512.h"
#else
#include "avx2.h"
#endif

namespace linear_group {

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
