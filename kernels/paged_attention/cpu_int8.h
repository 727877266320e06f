// The same over a cache of bytes: a key or value is d codes of eight bits and one scale. What a query
// head reads of sixteen positions lies together, 32 d + 128 bytes:
//
//   keys    [d / 4][slot][4]: four neighbouring numbers of sixteen positions are one vector
//   values  [slot / 4][d][4]: four neighbouring positions of sixteen numbers are one vector
//   scales  fp32, of 16 keys, then of 16 values
//
// A code is the number over the scale, rounded to -127 .. 127; a key's is kept plus 128. Queries are
// rounded the same way once, and the sixteen weights of a query, times their values' scales, to 0 .. 255
// parts of the largest, so both products are exact sums of bytes: neither the instruction set nor the
// batch nor the prompt's chunks change a bit.
#pragma once
#include <vector>
#include "cpu.h"

namespace paged_attention::int8 {
namespace {  // objects for several instruction sets may share a process: nothing is shared by name

constexpr int ZERO = 128, MOST_CODE = 127, MOST_SHARE = 255;

inline int64_t piece_bytes(int d) { return 2 * simd::LANES * d + 2 * simd::LANES * 4; }

inline uint8_t* piece_of(const Cache& c, int block, int slot, int head) {
  const int64_t pieces = (static_cast<int64_t>(block) * c.kv_heads + head) * (c.block_size / simd::LANES);
  return reinterpret_cast<uint8_t*>(c.data) + (pieces + slot / simd::LANES) * piece_bytes(c.d);
}
inline uint8_t* piece_at(const Cache& c, const Place& place) {
  return piece_of(c, place.table[place.position / c.block_size], place.position % c.block_size, place.head);
}

inline float* scales_of(uint8_t* piece, int d) {
  return reinterpret_cast<float*>(piece + 2 * simd::LANES * d);
}

// The largest magnitude of x [d] is MOST_CODE times the result.
inline float scale_of(const float* x, int d) {
  using namespace simd;
  F most = zero();
  for (int k = 0; k < d; k += LANES) most = max(most, abs(load(x + k)));
  return highest(most) / MOST_CODE;
}

inline simd::I coded(const float* x, float scale) {
  return simd::rounded(simd::div(simd::load(x), simd::set(scale == 0.0f ? 1.0f : scale)));
}

inline void write(const Cache& c, int block, int slot, int head, const float* key,
                  const float* value) {
  using namespace simd;
  uint8_t* piece = piece_of(c, block, slot, head);
  float* scales = scales_of(piece, c.d);
  const int at = slot % LANES;
  uint8_t* keys = piece + 4 * at;
  uint8_t* values = piece + LANES * c.d + at / 4 * 4 * c.d + at % 4;
  scales[at] = scale_of(key, c.d);
  scales[LANES + at] = scale_of(value, c.d);
  for (int k = 0; k < c.d; k += LANES) {
    int8_t codes[LANES];
    store_bytes(codes, coded(key + k, scales[at]));
    for (int i = 0; i < LANES; ++i)
      keys[(k + i) / 4 * 4 * LANES + i % 4] = static_cast<uint8_t>(codes[i] + ZERO);
    store_bytes(codes, coded(value + k, scales[LANES + at]));
    for (int i = 0; i < LANES; ++i) values[4 * (k + i)] = static_cast<uint8_t>(codes[i]);
  }
}

// A query's own rounding. less: what ZERO adds to every product with it.
struct Rounded {
  const simd::Four* q;  // [d / 4]
  float scale;          // of a code of q, and of the scores
  simd::I less;
};

inline simd::Codes all_zero() {
  alignas(64) static const struct Zeros {
    uint8_t byte[64];
    Zeros() { std::memset(byte, ZERO, sizeof byte); }
  } zeros;
  return simd::codes(zeros.byte);
}

inline Rounded round_query(const float* q, int d, float scale, simd::Four* into) {
  using namespace simd;
  const float own = scale_of(q, d);
  const Codes zeros = all_zero();
  I less = iset(0);
  for (int k = 0; k < d; k += LANES) {
    store_fours(into + k / 4, coded(q + k, own));
    for (int i = 0; i < 4; ++i) less = dot(less, zeros, into[k / 4 + i]);
  }
  return {into, own * scale, less};
}

// What one query takes of the values of sixteen positions, in parts of `by`.
struct Shares {
  simd::Four parts[4];
  float by;
};

// G queries score sixteen positions from `first` on; `next` is needed soon.
template <int G>
void score(const uint8_t* here, const uint8_t* next, int d, int first, Query* queries,
           const Rounded* rounded, Shares* shares) {
  using namespace simd;
  const float* scales = reinterpret_cast<const float*>(here + 2 * LANES * d);
  I even[G], odd[G];
  for (int i = 0; i < G; ++i) even[i] = odd[i] = iset(0);
  for (int k = 0; k < d / 4; k += 2) {
    const Codes a = codes(here + k * 64), b = codes(here + k * 64 + 64);
    ask(next + k * 64);
    ask(next + k * 64 + 64);
#pragma GCC unroll 8
    for (int i = 0; i < G; ++i) {
      even[i] = dot(even[i], a, rounded[i].q[k]);
      odd[i] = dot(odd[i], b, rounded[i].q[k + 1]);
    }
  }
  const F of_keys = load(scales), of_values = load(scales + LANES);
  for (int i = 0; i < G; ++i) {
    const F scored = mul(to_float(isub(iadd(even[i], odd[i]), rounded[i].less)),
                         mul(of_keys, set(rounded[i].scale)));
    float weights[LANES];
    weigh(queries[i], scored, first, d, weights);
    const int lo = std::max(queries[i].from - first, 0);
    const int hi = std::min(queries[i].n_seen - first, LANES);
    F part = mul(load(weights), of_values);
    if (lo > 0 || hi < LANES) part = lo < hi ? between(part, lo, hi, 0.0f) : zero();
    const float most = highest(part);
    store_fours(shares[i].parts,
                simd::rounded(mul(part, set(most > 0.0f ? MOST_SHARE / most : 0.0f))));
    shares[i].by = most * (1.0f / MOST_SHARE);
  }
}

// Adds to every query's out the values of those positions.
template <int G>
void mix(const uint8_t* values, const uint8_t* next, int d, Query* queries, const Shares* shares) {
  using namespace simd;
  for (int k = 0; k < d; k += LANES) {
    Codes v[4];
    for (int s = 0; s < 4; ++s) v[s] = codes(values + 4 * (s * d + k));
    for (int s = 0; s < 4; ++s) ask(next + 4 * (s * d + k));
#pragma GCC unroll 8
    for (int i = 0; i < G; ++i) {
      I sum = iset(0);
      for (int s = 0; s < 4; ++s) sum = dot_signed(sum, v[s], shares[i].parts[s]);
      float* out = queries[i].out + k;
      store(out, fma(to_float(sum), set(shares[i].by), load(out)));
    }
  }
  ask(next + LANES * d);  // scales
  ask(next + LANES * d + 64);
}

struct Steps {
  void (*score)(const uint8_t*, const uint8_t*, int, int, Query*, const Rounded*, Shares*);
  void (*mix)(const uint8_t*, const uint8_t*, int, Query*, const Shares*);
};

template <int G = MOST>
inline Steps steps_of(int n) {
  if constexpr (G > 1)
    if (n < G) return steps_of<G - 1>(n);
  return {score<G>, mix<G>};
}

// As paged_attention::ask_first.
inline void ask_first(const Cache& c, const Place& place, int n_heads) {
  const uint8_t* piece = piece_at(c, place);
  for (int h = 0; h < n_heads; ++h, piece += piece_bytes(c.d) * (c.block_size / simd::LANES))
    for (int64_t at = 0; at < piece_bytes(c.d); at += 64) simd::ask(piece + at);
}

// As paged_attention::all.
inline void all(const Cache& c, const int32_t* table, int head, int n_heads, Query* queries,
                int each, float scale, const Place* then) {
  using namespace simd;
  const int d = c.d, size = c.block_size, n = n_heads * each;
  thread_local std::vector<Four> fours;
  thread_local std::vector<Rounded> rounded;
  thread_local std::vector<Shares> shares;
  fours.resize(static_cast<size_t>(n) * d / 4);
  rounded.resize(n);
  shares.resize(n);
  int begin = queries[0].from, end = 0;
  for (int i = 0; i < n; ++i) {
    begin = std::min(begin, queries[i].from);
    end = std::max(end, queries[i].n_seen);
    rounded[i] = round_query(queries[i].q, d, scale, fours.data() + i * d / 4);
    for (int k = 0; k < d; k += LANES) store(queries[i].out + k, zero());
  }
  const Steps full = steps_of(std::min(each, MOST));
  const Steps rest = each > MOST && each % MOST ? steps_of(each % MOST) : full;
  // All heads score before the first mixes: what follows a score is a long chain of few operations.
  for (int first = begin / LANES * LANES; first < end; first += LANES) {
    const bool last = first + LANES >= end;
    const int64_t apart = piece_bytes(d) * (size / LANES);  // one head from the next
    const uint8_t* here = piece_at(c, {table, first, head});
    const uint8_t* next = !last  ? piece_at(c, {table, first + LANES, head})
                          : then ? piece_at(c, *then)
                                 : here;
    for (int h = 0; h < n_heads; ++h)
      for (int i = 0; i < each; i += MOST)
        (each - i < MOST ? rest : full)
            .score(here + h * apart, next + h * apart, d, first, queries + h * each + i,
                   rounded.data() + h * each + i, shares.data() + h * each + i);
    for (int h = 0; h < n_heads; ++h)
      for (int i = 0; i < each; i += MOST)
        (each - i < MOST ? rest : full)
            .mix(here + h * apart + LANES * d, next + h * apart + LANES * d, d, queries + h * each + i,
                 shares.data() + h * each + i);
  }
  for (int i = 0; i < n; ++i) {
    const F by = set(1.0f / sum(queries[i].total));
    for (int k = 0; k < d; k += LANES) store(queries[i].out + k, mul(load(queries[i].out + k), by));
  }
}

}  // namespace
}  // namespace paged_attention::int8
