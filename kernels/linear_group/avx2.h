// The products of cpu.h on AVX2. Products of two bytes have 16 bits there, and so have a group's sums.
// Sixteen registers hold the sums of a few rows and half a tile, and not its codes too: those are unpacked
// again for the next few rows, or, of 5 bits, kept in the first cache.
#pragma once
#include <type_traits>
#include "cpu.h"

namespace linear_group {

constexpr int EIGHT = 8;

inline __m256i masked(__m256i v, int mask) {
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}

inline __m256i vector(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

constexpr int NEXT = 4 * TILE;  // bytes from a vector to the same outputs' next

// Vectors of codes of 5 bits: of the first 16 inputs in `low`, of the last 16 in `high`. `more` holds the
// fifth bits, those of this vector lowest.
inline void fives(__m256i v, __m256i& more, __m256i& low, __m256i& high) {
  low = _mm256_or_si256(masked(v, 15), masked(_mm256_slli_epi16(more, 3), 16));
  high = _mm256_or_si256(masked(_mm256_srli_epi16(v, 3), 30), masked(more, 1));
  more = _mm256_srli_epi16(more, 2);
}

// Unpacks a group's codes of 5 bits for 8 H outputs; p: the first line of these outputs.
template <int H>
inline void open(const uint8_t* p, __m256i (&codes)[8][H]) {
  for (int h = 0; h < H; ++h) {
    __m256i more = vector(p + 32 * h);
    for (int j = 0; j < 4; ++j)
      fives(vector(p + (1 + j) * NEXT + 32 * h), more, codes[2 * j][h], codes[2 * j + 1][h]);
  }
}

// A group's sums for R rows and 8 H outputs. p: the first line of these outputs, or `opened` ones; x: the
// first row's inputs. Exact: 4 times 2 products of a signed byte and 5 bits fit in 16 bits, of 4 bits 8
// times 2. It is a loop so that one instruction loads all codes, and GCC does not reorder the sums.
template <int BITS, int R, int H>
inline void multiply(const uint8_t* p, const __m256i (*opened)[H], const int8_t* x,
                     __m256i (&total)[R][H]) {
  using Sums = __m256i[R][H];
  Sums one, two;  // 4 bits: all; 5 bits: of the first 16 inputs, the last; 8 bits: of low bits, high bits
  __m256i more[H];
  for (int h = 0; h < H; ++h) {
    for (int r = 0; r < R; ++r) one[r][h] = two[r][h] = _mm256_setzero_si256();
    if constexpr (BITS == 5) more[h] = vector(p + 32 * h);
  }
  const auto add = [](Sums& sums, const __m256i (&w)[H], const int8_t* in)
                       __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      int32_t four;
      std::memcpy(&four, in + r * GROUP, 4);
      const __m256i inputs = _mm256_set1_epi32(four);
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h)
        sums[r][h] = _mm256_add_epi16(sums[r][h], _mm256_maddubs_epi16(w[h], inputs));
    }
  };
  if constexpr (BITS == 5) p += NEXT;
#pragma GCC unroll 1
  for (int j = 0; j < 4; ++j, p += NEXT, x += 4) {
    __m256i low[H], high[H];
    const auto nibbles = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) {
        const __m256i v = vector(p + 32 * h);
        low[h] = masked(v, 15);
        high[h] = masked(_mm256_srli_epi16(v, 4), 15);
      }
    };
    if constexpr (BITS == 8) {
      nibbles();
      add(one, low, x);
      add(two, high, x);
      p += NEXT;
      nibbles();
      add(one, low, x + 16);
      add(two, high, x + 16);
    } else if constexpr (BITS == 5) {
      if (opened) {
        add(one, opened[2 * j], x);
        add(two, opened[2 * j + 1], x + 16);
      } else {
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h) fives(vector(p + 32 * h), more[h], low[h], high[h]);
        add(one, low, x);
        add(two, high, x + 16);
      }
    } else {
      nibbles();
      add(one, low, x);
      add(one, high, x + 16);
    }
  }
  const __m256i ones = _mm256_set1_epi16(1), by = _mm256_set1_epi16(BITS == 8 ? 16 : 1);
  for (int r = 0; r < R; ++r)
    for (int h = 0; h < H; ++h) {
      total[r][h] = _mm256_madd_epi16(one[r][h], ones);
      if constexpr (BITS > 4)
        total[r][h] = _mm256_add_epi32(total[r][h], _mm256_madd_epi16(two[r][h], by));
    }
}

// Adds a group's products for rows i to i + R - 1 and outputs `out` to out + 8 H - 1 of a tile.
template <int BITS, bool SHIFTED, int R, int H>
inline void add_group(const uint8_t* at, const __m256i (*opened)[H], int out, const Rounded& x,
                      int64_t i, float (*acc)[TILE]) {
  const auto half = [](const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  };
  const auto* scales = reinterpret_cast<const uint16_t*>(at + GROUP * TILE * BITS / 8) + out;
  __m256i total[R][H];
  multiply<BITS, R, H>(at + 4 * out, opened, x.codes + i * GROUP, total);
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
    const __m256 by = half(scales + EIGHT * h);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      __m256i whole = total[r][h];
      if constexpr (!SHIFTED)
        whole = _mm256_add_epi32(
            whole, _mm256_slli_epi32(_mm256_set1_epi32(x.minus[i + r]), BITS - 1));
      const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(x.scale[i + r]));
      float* to = acc[r] + out + EIGHT * h;
      __m256 sum = _mm256_fmadd_ps(product, by, _mm256_load_ps(to));
      if constexpr (SHIFTED)
        sum = _mm256_fmadd_ps(half(scales + TILE + EIGHT * h), _mm256_set1_ps(x.total[i + r]), sum);
      _mm256_store_ps(to, sum);
    }
  }
}

// A tile for n rows, at most MANY: R, or any number where R is 0. Its weights are one straight stream.
template <int BITS, bool SHIFTED, int R>
__attribute__((noinline)) void rows(const Weight& w, int tile, const Rounded& x, int row, int n,
                                    const float* bias, Into into, float* y, int64_t stride) {
  constexpr int BYTES = group_bytes(BITS, SHIFTED);
  constexpr int H = R == 1 ? 4 : 2, STEP = BITS == 4 ? 4 : 2;
  if constexpr (R > 0) n = R;
  const int ahead = n <= 2 ? AHEAD : FAR_AHEAD;
  const uint8_t* at = w.data + tile * tile_bytes(w);
  int64_t i = x.at(row, n_groups(w));
  alignas(64) float acc[R > 0 ? R : MANY][TILE];
  for (int r = 0; r < n; ++r) std::fill_n(acc[r], TILE, 0.0f);
  for (int g = 0; g < n_groups(w); ++g, i += x.width, at += BYTES) {
    for (int line = 0; line < BYTES; line += 64) simd::ask(at + ahead + line);
#pragma GCC unroll 1
    for (int out = 0; out < TILE; out += EIGHT * H) {
      if constexpr (R > 0) {
        add_group<BITS, SHIFTED, R, H>(at, nullptr, out, x, i, acc);
      } else {
        __m256i codes[8][H];
        if constexpr (BITS == 5) open(at + 4 * out, codes);
        const auto add = [&](auto rows, int r) __attribute__((always_inline)) {
          add_group<BITS, SHIFTED, decltype(rows)::value, H>(at, codes, out, x, i + r, acc + r);
        };
        int r = 0;
        for (; r + STEP <= n; r += STEP) add(std::integral_constant<int, STEP>{}, r);
        if constexpr (STEP == 4) {
          if (n - r == 3) add(std::integral_constant<int, 3>{}, r);
          if (n - r == 2) add(std::integral_constant<int, 2>{}, r);
        }
        if (n - r == 1) add(std::integral_constant<int, 1>{}, r);
      }
    }
  }
  for (int r = 0; r < n; ++r)
    for (int out = 0; out < TILE; out += LANES)
      put(simd::load(acc[r] + out), tile * TILE + out, w.n_out, bias, into, y + (row + r) * stride);
}

}  // namespace linear_group
