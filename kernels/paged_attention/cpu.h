// Queries against the cached positions of their request, in one pass with a running maximum (online
// softmax, arXiv 1805.02867). What a query head reads of a block lies together: keys as [d, slot],
// so that sixteen positions are scored at once with no sum across lanes, then values as [slot, d],
// both fp16. Positions are taken in order, sixteen at a time: neither the batch nor the prompt's
// chunks change a result.
#pragma once
#include <algorithm>
#include "../native/simd.h"

namespace paged_attention {

struct Cache {
  uint16_t* data;  // one layer: [n_blocks, kv_heads, keys [d, block_size], values [block_size, d]]
  int32_t n_blocks, kv_heads, block_size, d;  // block_size and d: multiples of 16
  int32_t bits;  // 16: as here. 8: cpu_int8.h
};

inline uint16_t* keys_of(const Cache& c, int block, int head) {
  return c.data + (static_cast<int64_t>(block) * c.kv_heads + head) * 2 * c.block_size * c.d;
}

inline void write(const Cache& c, int block, int slot, int head, const float* key,
                  const float* value) {
  uint16_t* keys = keys_of(c, block, head);
  uint16_t* values = keys + c.block_size * c.d + slot * c.d;
  for (int k = 0; k < c.d; k += simd::LANES) {
    uint16_t lanes[simd::LANES];
    simd::store_half(lanes, simd::load(key + k));
    for (int i = 0; i < simd::LANES; ++i) keys[(k + i) * c.block_size + slot] = lanes[i];
    simd::store_half(values + k, simd::load(value + k));
  }
}

constexpr int MOST = 8;  // queries that read a key head's positions together

// What is weighed by up to e^HIGHER is left as it is: scaling anew for each little rise costs more.
constexpr float HIGHER = 8;

// Sees positions [from, n_seen). top and total: of which a weight is 1, the running maximum less HIGHER or
// more, and the sum of the weights.
struct Query {
  const float* q;  // [d]
  float* out;      // [d]
  int32_t from, n_seen;
  float top = -INFINITY;
  simd::F total = simd::zero();
};

// The weights of one query for 16 positions from their scores; what came before is scaled down.
inline void weigh(Query& query, simd::F score, int first, int d, float* weights) {
  using namespace simd;
  const int lo = std::max(query.from - first, 0), hi = std::min(query.n_seen - first, LANES);
  if (hi <= lo) return store(weights, zero());
  const bool partly = lo > 0 || hi < LANES;
  if (partly) score = between(score, lo, hi, -INFINITY);
  if (any_above(score, query.top + HIGHER)) {
    const float best = highest(score);
    const F by = exp(set(query.top - best));
    query.top = best;
    query.total = mul(query.total, by);
    for (int k = 0; k < d; k += LANES) store(query.out + k, mul(load(query.out + k), by));
  }
  F weight = exp(sub(score, set(query.top)));
  if (partly) weight = between(weight, lo, hi, 0.0f);
  query.total = add(query.total, weight);
  store(weights, weight);
}

// Sixteen positions of a request, from a multiple of 16 on, and the first of the key heads that read them.
struct Place {
  const int32_t* table;
  int position, head;
};

// Where they lie: keys [d] rows of block_size slots, values [16, d].
struct Piece {
  const uint16_t* keys;
  const uint16_t* values;

  void move(int by) { keys += by, values += by; }
};

inline Piece piece_of(const Cache& c, const Place& place) {
  const int slot = place.position % c.block_size;
  const uint16_t* keys = keys_of(c, place.table[place.position / c.block_size], place.head);
  return {keys + slot, keys + (c.block_size + slot) * c.d};
}

// values [n, d] times weights [G, 16], added to vectors [k, k + W) of every query's out; as many at `next`
// are asked for.
template <int G, int W>
inline void mix(const uint16_t* values, const uint16_t* next, int n, int d, int k,
                const float* weights, Query* queries) {
  using namespace simd;
  F acc[G][W];
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i)
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) acc[i][w] = load(queries[i].out + k + w * LANES);
  values += k;
  next += k;
#pragma GCC unroll 2
  for (int s = 0; s < n; ++s, values += d, next += d) {
    for (int w = 0; w < W; w += 2) ask(next + w * LANES);
    F v[W];
    for (int w = 0; w < W; ++w) v[w] = half(values + w * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < G; ++i) {
      const F weight = set(weights[i * LANES + s]);
      for (int w = 0; w < W; ++w) acc[i][w] = fma(weight, v[w], acc[i][w]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i)
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) store(queries[i].out + k + w * LANES, acc[i][w]);
}

// G queries take in positions [first, first + n), n <= 16, which lie at `here`; `next` is needed soon.
template <int G>
void advance(const Piece& here, const Piece& next, int size, int d, int first, int n, float scale,
             Query* queries) {
  using namespace simd;
  const uint16_t *keys = here.keys, *soon = next.keys;
  F even[G], odd[G];
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i) even[i] = odd[i] = zero();
#pragma GCC unroll 2
  for (int k = 0; k < d; k += 2, keys += 2 * size, soon += 2 * size) {
    ask(soon);
    if (size > LANES) ask(soon + size);
    const F a = half(keys), b = half(keys + size);
#pragma GCC unroll 8
    for (int i = 0; i < G; ++i) {
      even[i] = fma(set(queries[i].q[k]), a, even[i]);
      odd[i] = fma(set(queries[i].q[k + 1]), b, odd[i]);
    }
  }
  float stored[G][LANES];
#pragma GCC unroll 8
  for (int i = 0; i < G; ++i)
    weigh(queries[i], mul(add(even[i], odd[i]), set(scale)), first, d, stored[i]);
  const float* weights = stored[0];
  asm("" : "+r"(weights) : "m"(stored));  // read from memory: of vectors at hand GCC makes 16 shuffles
  for (int k = 0; k < d;) {
    constexpr int WIDE = G <= 6 ? 4 : 2;  // sums stay in registers
    const int left = (d - k) / LANES, wide = left >= WIDE ? WIDE : left >= 2 ? 2 : 1;
    if (wide == WIDE) mix<G, WIDE>(here.values, next.values, n, d, k, weights, queries);
    else if (wide == 2) mix<G, 2>(here.values, next.values, n, d, k, weights, queries);
    else mix<G, 1>(here.values, next.values, n, d, k, weights, queries);
    k += LANES * wide;
  }
}

using Advance = void (*)(const Piece&, const Piece&, int, int, int, int, float, Query*);

template <int G = MOST>
inline Advance advance_of(int n) {
  if constexpr (G > 1)
    if (n < G) return advance_of<G - 1>(n);
  return advance<G>;
}

// Asks for what n_heads key heads read first.
inline void ask_first(const Cache& c, const Place& place, int n_heads) {
  Piece first = piece_of(c, place);
  for (int h = 0; h < n_heads; ++h, first.move(2 * c.block_size * c.d)) {
    for (int k = 0; k < c.d; ++k) simd::ask(first.keys + k * c.block_size);
    for (int k = 0; k < simd::LANES * c.d; k += 2 * simd::LANES) simd::ask(first.values + k);
  }
}

// Key heads [head, head + n_heads) of one request, `each` fresh queries per head side by side. A block is
// read from end to end, head by head, before the next, which is asked for meanwhile: it may lie
// anywhere. `then`: what is read after all of it, or null.
inline void all(const Cache& c, const int32_t* table, int head, int n_heads, Query* queries,
                int each, float scale, const Place* then) {
  using namespace simd;
  const int d = c.d, size = c.block_size, n = n_heads * each;
  int begin = queries[0].from, end = 0;
  for (int i = 0; i < n; ++i) {
    begin = std::min(begin, queries[i].from);
    end = std::max(end, queries[i].n_seen);
    for (int k = 0; k < d; k += LANES) store(queries[i].out + k, zero());
  }
  const int full = std::min(each, MOST), rest = each % MOST ? each % MOST : full;
  const Advance advances[] = {advance_of(full), advance_of(rest)};
  for (int first = begin / LANES * LANES; first < end; first += LANES) {
    const bool last = first + LANES >= end;
    Piece here = piece_of(c, {table, first, head});
    Piece next = !last ? piece_of(c, {table, first + LANES, head}) : then ? piece_of(c, *then) : here;
    for (int h = 0; h < n_heads; ++h, here.move(2 * size * d), next.move(2 * size * d)) {
      Query* some = queries + h * each;
      for (int i = 0; i < each; i += MOST)
        advances[each - i < MOST](here, next, size, d, first, std::min(LANES, end - first), scale,
                                  some + i);
    }
  }
  for (int i = 0; i < n; ++i) {
    const F by = set(1.0f / sum(queries[i].total));
    for (int k = 0; k < d; k += LANES) store(queries[i].out + k, mul(load(queries[i].out + k), by));
  }
}

}  // namespace paged_attention
