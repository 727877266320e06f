// Sixteen lanes at a time, on AVX-512 with VNNI or on AVX2. Every lane does the same operations in
// the same order on both, so results agree bit for bit.
#pragma once
#include <immintrin.h>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace simd {

constexpr int LANES = 16;

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define SIMD_NAME "avx512-vnni"

using F = __m512;
using I = __m512i;
using Codes = __m512i;  // 64 unsigned bytes: 16 outputs x 4 inputs

inline F zero() { return _mm512_setzero_ps(); }
inline F set(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F abs(F a) { return _mm512_abs_ps(a); }
inline F half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_half(uint16_t* p, F x) {  // rounds to nearest, ties to even
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline F between(F x, int lo, int hi, float other) {  // lanes outside of [lo, hi) become `other`
  const __mmask16 inside = static_cast<__mmask16>((0xFFFFu << lo) & (0xFFFFu >> (LANES - hi)));
  return _mm512_mask_blend_ps(inside, _mm512_set1_ps(other), x);
}
inline float highest(F x) { return _mm512_reduce_max_ps(x); }
inline bool any_above(F x, float y) {
  return _mm512_cmp_ps_mask(x, _mm512_set1_ps(y), _CMP_GT_OQ) != 0;
}
inline I iset(int32_t x) { return _mm512_set1_epi32(x); }
inline I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
template <int BITS>
inline I shifted(const int32_t* p) {  // the number at p, times 2^BITS, in every lane
  return _mm512_slli_epi32(_mm512_set1_epi32(*p), BITS);
}
inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
inline I rounded(F x) { return _mm512_cvtps_epi32(x); }
inline int32_t sum(I a, I b) { return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b)); }
inline F power2(I n) {  // 2^n for -126 <= n <= 127
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
inline void store_bytes(int8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(x));
}
inline Codes codes(const uint8_t* p) { return _mm512_loadu_si512(p); }

inline I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
// Four small numbers, as the products below want them; store_fours makes four of them, of lanes from
// -127 to 255.
using Four = int32_t;
inline void store_fours(Four* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
// Each of 16 sums += 4 products, exactly: of unsigned bytes and -127 to 127,
inline I dot(I sum, Codes w, const Four& x) {
  // GCC 12 makes it three instructions of its own intrinsics.
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(x));
  return sum;
}
// of signed bytes and 0 to 255.
inline I dot_signed(I sum, Codes w, const Four& x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(_mm512_set1_epi32(x)), "v"(w));
  return sum;
}

inline float sum(F x) {  // pairs that are 8, 4, 2, 1 apart
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

// Swaps neighbouring lanes: 1 0 3 2 ...
inline F swapped(F x) { return _mm512_permute_ps(x, 0xB1); }
inline F evens(F x) { return _mm512_moveldup_ps(x); }
inline F odds(F x) { return _mm512_movehdup_ps(x); }
// a * b, minus c in even lanes and plus c in odd ones
inline F fma_alternate(F a, F b, F c) { return _mm512_fmaddsub_ps(a, b, c); }

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SIMD_NAME "avx2"

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
using Codes = I;

inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store_half(uint16_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline __m256 between(__m256 x, __m256i lane, int lo, int hi, float other) {
  const __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane),
                                             _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
  return _mm256_blendv_ps(_mm256_set1_ps(other), x, _mm256_castsi256_ps(inside));
}
inline F between(F x, int lo, int hi, float other) {
  return {between(x.a, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), lo, hi, other),
          between(x.b, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15), lo, hi, other)};
}
inline float highest(F x) {
  const __m256 h = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline bool any_above(F x, float y) {
  const __m256 limit = _mm256_set1_ps(y);
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(x.a, limit, _CMP_GT_OQ),
                                         _mm256_cmp_ps(x.b, limit, _CMP_GT_OQ))) != 0;
}
inline I iset(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I iadd(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
template <int BITS>
inline I shifted(const int32_t* p) {
  const __m256i all = _mm256_slli_epi32(_mm256_set1_epi32(*p), BITS);
  return {all, all};
}
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I rounded(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline int32_t sum(I x, I y) {
  const __m256i h = _mm256_add_epi32(_mm256_add_epi32(x.a, x.b), _mm256_add_epi32(y.a, y.b));
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xB1)));
}
inline F power2(I n) {
  const __m256i bias = _mm256_set1_epi32(127);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.a, bias), 23)),
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.b, bias), 23))};
}
inline void store_bytes(int8_t* p, I x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline Codes codes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}

inline I isub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
using Four = int64_t;  // 16 bits each, in the order 0, 2, 1, 3
inline void store_fours(Four* p, I x) {
  const __m256i all = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(all, 0xD8), 0xD8));
}
inline __m256i dot_half(__m256i sum, __m256i even, __m256i odd, const Four& x) {
  int32_t pair[2];
  std::memcpy(pair, &x, 8);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, _mm256_set1_epi32(pair[0])));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, _mm256_set1_epi32(pair[1])));
}
inline I dot(I sum, Codes w, const Four& x) {
  const __m256i mask = _mm256_set1_epi16(255);
  return {dot_half(sum.a, _mm256_and_si256(w.a, mask), _mm256_srli_epi16(w.a, 8), x),
          dot_half(sum.b, _mm256_and_si256(w.b, mask), _mm256_srli_epi16(w.b, 8), x)};
}
inline I dot_signed(I sum, Codes w, const Four& x) {
  const auto even = [](__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); };
  return {dot_half(sum.a, even(w.a), _mm256_srai_epi16(w.a, 8), x),
          dot_half(sum.b, even(w.b), _mm256_srai_epi16(w.b, 8), x)};
}

inline float sum(F x) {
  const __m256 h = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
inline F swapped(F x) { return {_mm256_permute_ps(x.a, 0xB1), _mm256_permute_ps(x.b, 0xB1)}; }
inline F evens(F x) { return {_mm256_moveldup_ps(x.a), _mm256_moveldup_ps(x.b)}; }
inline F odds(F x) { return {_mm256_movehdup_ps(x.a), _mm256_movehdup_ps(x.b)}; }
inline F fma_alternate(F x, F y, F z) {
  return {_mm256_fmaddsub_ps(x.a, y.a, z.a), _mm256_fmaddsub_ps(x.b, y.b, z.b)};
}

#else
#error "needs AVX-512 VNNI, or AVX2 with FMA and F16C"
#endif

// The line at p is needed soon. Into the second cache: what goes there does not take up the few dozen
// places that the first has for lines on their way. Always inlined, for GCC takes a function that does no
// more than this for one without effect, and drops the calls.
__attribute__((always_inline)) inline void ask(const void* p) { __builtin_prefetch(p, 0, 2); }

// e^x with a relative error below 2e-7; x below -87 counts as -87.
inline F exp(F x) {
  x = min(max(x, set(-87.0f)), set(88.0f));
  const I n = rounded(mul(x, set(1.44269504088896341f)));
  const F whole = to_float(n);
  F r = fma(whole, set(-0.693359375f), x);
  r = fma(whole, set(2.12194440e-4f), r);
  F p = set(1.9875691500e-4f);
  p = fma(p, r, set(1.3981999507e-3f));
  p = fma(p, r, set(8.3334519073e-3f));
  p = fma(p, r, set(4.1665795894e-2f));
  p = fma(p, r, set(1.6666665459e-1f));
  p = fma(p, r, set(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set(1.0f));
  return mul(p, power2(n));
}

}  // namespace simd
