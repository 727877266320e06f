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

// Rounded activations: codes [n, n_in]; of each group the scale, minus the sum of the codes,
// and scale times sum, all [n, groups].
struct Rounded {
  int8_t* codes;
  float* scale;
  int32_t* minus;
  float* total;
};

inline void round_row(const float* x, int n_in, int row, const Rounded& to) {
  using namespace simd;
  int8_t* codes = to.codes + static_cast<int64_t>(row) * n_in;
  int64_t at = static_cast<int64_t>(row) * (n_in / GROUP);
  for (int g = 0; g < n_in / GROUP; ++g, ++at, x += GROUP, codes += GROUP) {
    const F below = load(x), above = load(x + LANES);
    const float top = highest(max(abs(below), abs(above)));
    const F inverse = set(top > 0 ? 127.0f / top : 0.0f);
    const I low = rounded(mul(below, inverse)), high = rounded(mul(above, inverse));
    store_bytes(codes, low);
    store_bytes(codes + LANES, high);
    const int32_t sum = simd::sum(low, high);
    to.scale[at] = top / 127.0f;
    to.minus[at] = -sum;
    to.total[at] = to.scale[at] * static_cast<float>(sum);
  }
}

enum class Into { store, add };

// T neighbouring parts of a tile, from `part` on, times R rows.
template <int BITS, bool SHIFTED, int T, int R>
inline void block(const Weight& w, int tile, int part, const Rounded& x, int row,
                  const float* bias, Into into, float* y, int64_t stride) {
  using namespace simd;
  constexpr int CODES = GROUP * LANES * BITS / 8;
  const int groups = n_groups(w);
  const uint8_t* at = w.data + tile * tile_bytes(w);
  const int8_t* codes[R];
  const float* scale[R];
  const int32_t* minus[R];
  const float* total[R];
  for (int r = 0; r < R; ++r) {
    codes[r] = x.codes + static_cast<int64_t>(row + r) * w.n_in;
    scale[r] = x.scale + static_cast<int64_t>(row + r) * groups;
    minus[r] = x.minus + static_cast<int64_t>(row + r) * groups;
    total[r] = x.total + static_cast<int64_t>(row + r) * groups;
  }
  F acc[T][R];
  for (int t = 0; t < T; ++t)
    for (int r = 0; r < R; ++r) acc[t][r] = zero();
  for (int g = 0; g < groups; ++g, at += group_bytes(BITS, SHIFTED)) {
    const auto* scales = reinterpret_cast<const uint16_t*>(at + PARTS * CODES) + part * LANES;
    const int first = g * GROUP;
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const uint8_t* p = at + (part + t) * CODES;
      I sum[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[r] = SHIFTED ? iset(0) : shifted<BITS - 1>(minus[r] + g);
      if constexpr (BITS == 8) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
          const Codes v = simd::codes(p + 64 * j);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sum[r] = dot<true>(sum[r], v, codes[r] + first + 4 * j);
        }
      } else {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const Codes v = simd::codes(p + 64 * j);
          Codes lo = low(v), hi = high(v);
          if constexpr (BITS == 5) {
            lo = fifth(lo, p + 256 + 8 * j);
            hi = fifth(hi, p + 288 + 8 * j);
          }
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            sum[r] = dot<false>(sum[r], lo, codes[r] + first + 4 * j);
            sum[r] = dot<false>(sum[r], hi, codes[r] + first + 16 + 4 * j);
          }
        }
      }
      const F by = half(scales + t * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        acc[t][r] = fma(mul(to_float(sum[r]), set(scale[r][g])), by, acc[t][r]);
      if constexpr (SHIFTED) {
        const F shift = half(scales + TILE + t * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
          acc[t][r] = fma(shift, set(total[r][g]), acc[t][r]);
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    const int out = tile * TILE + (part + t) * LANES;
    const int n = std::min(LANES, w.n_out - out);
    for (int r = 0; r < R && n > 0; ++r) {
      float* to = y + (row + r) * stride + out;
      if (n == LANES) {
        F value = acc[t][r];
        if (bias) value = add(value, load(bias + out));
        store(to, into == Into::add ? add(load(to), value) : value);
      } else {
        float lanes[LANES];
        store(lanes, acc[t][r]);
        for (int i = 0; i < n; ++i) {
          const float value = bias ? lanes[i] + bias[out + i] : lanes[i];
          to[i] = into == Into::add ? to[i] + value : value;
        }
      }
    }
  }
}

template <int BITS, bool SHIFTED, int T, int R>
inline void rows(const Weight& w, int tile, const Rounded& x, int row, const float* bias,
                 Into into, float* y, int64_t stride) {
  for (int part = 0; part < PARTS; part += T)
    block<BITS, SHIFTED, T, R>(w, tile, part, x, row, bias, into, y, stride);
}

// Tiles [first, last) for all n rows. Few rows: the whole tile at once, a straight stream. Eight: a
// quarter, whose sums stay in registers (measured on Zen 4).
template <int BITS, bool SHIFTED>
inline void tiles(const Weight& w, int first, int last, const Rounded& x, int n, const float* bias,
                  Into into, float* y, int64_t stride) {
  for (int tile = first; tile < last; ++tile) {
    int r = 0;
    for (; r + 8 <= n; r += 8) rows<BITS, SHIFTED, 1, 8>(w, tile, x, r, bias, into, y, stride);
    for (; r + 4 <= n; r += 4) rows<BITS, SHIFTED, 4, 4>(w, tile, x, r, bias, into, y, stride);
    if (n - r == 3) rows<BITS, SHIFTED, 4, 3>(w, tile, x, r, bias, into, y, stride);
    if (n - r == 2) rows<BITS, SHIFTED, 4, 2>(w, tile, x, r, bias, into, y, stride);
    if (n - r == 1) rows<BITS, SHIFTED, 4, 1>(w, tile, x, r, bias, into, y, stride);
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
