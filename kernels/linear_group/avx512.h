// The products of cpu.h on AVX-512 with VNNI: 16 outputs a vector, all of a tile's codes in registers.
#pragma once
#include <type_traits>
#include "cpu.h"

namespace linear_group {

// Four bits of each byte, and the other four, times 2^HIGH.
constexpr int HIGH = 4, HIGH_FIFTH = 3;
inline simd::Codes low(simd::Codes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline simd::Codes high(simd::Codes v) { return _mm512_and_si512(v, _mm512_set1_epi8(-16)); }
// Bits 2 J and 2 J + 1 of each byte become bits 3 and 4.
template <int J>
inline simd::Codes fifths(simd::Codes v) {
  constexpr int LEFT = J < 2 ? 3 - 2 * J : 0, RIGHT = J < 2 ? 0 : 2 * J - 3;
  const simd::Codes there = J < 2 ? _mm512_slli_epi16(v, LEFT) : _mm512_srli_epi16(v, RIGHT);
  return _mm512_and_si512(there, _mm512_set1_epi8(24));
}
// The low half's codes end with bit 4 of `more`; the high half's, times 2^HIGH_FIFTH, begin with bit 3.
inline simd::Codes low(simd::Codes v, simd::Codes more) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), v, more, 0xCA);
}
inline simd::Codes high(simd::Codes v, simd::Codes more) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi8(-16), v, more, 0xCA);
}
template <int BITS>
inline simd::I right(simd::I x) {
  return _mm512_srai_epi32(x, BITS);
}
using Inputs = __m512i;
inline Inputs inputs(const int8_t* four) {  // in all lanes
  int32_t x;
  std::memcpy(&x, four, 4);
  return _mm512_set1_epi32(x);
}
// Each of 16 sums += 4 products of unsigned codes and signed inputs; exact.
inline simd::I dot(simd::I sum, simd::Codes w, Inputs x) {
  // GCC 12 makes it three instructions of its own intrinsics.
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  return sum;
}

// Codes of the last 16 inputs of a group come times 2^SCALED.
template <int BITS>
constexpr int SCALED = BITS == 4 ? HIGH : BITS == 5 ? HIGH_FIFTH : 0;

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
            one[k][t] = dot(one[k][t], first[j][t], a);
            two[k][t] = dot(two[k][t], last[j][t], b);
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

}  // namespace linear_group
