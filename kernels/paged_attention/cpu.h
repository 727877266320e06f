// Queries against the cached positions of their request. Keys of a block lie as [d, slot], so that
// sixteen positions are scored at once with no sum across lanes; values as [slot, d]. Positions are
// taken in order: neither the batch nor the prompt's chunks change a result.
#pragma once
#include <algorithm>
#include "../native/simd.h"

namespace paged_attention {

struct Cache {
  float* data;  // one layer: keys [n_blocks, kv_heads, d, block_size], then values [.., block_size, d]
  int32_t n_blocks, kv_heads, block_size, d;  // block_size and d: multiples of 16
};

inline float* block_of(const Cache& c, int side, int block, int head) {
  const int64_t at = (static_cast<int64_t>(side) * c.n_blocks + block) * c.kv_heads + head;
  return c.data + at * c.block_size * c.d;
}

inline void write(const Cache& c, int block, int slot, int head, const float* key,
                  const float* value) {
  float* keys = block_of(c, 0, block, head) + slot;
  for (int k = 0; k < c.d; ++k) keys[k * c.block_size] = key[k];
  std::memcpy(block_of(c, 1, block, head) + slot * c.d, value, c.d * sizeof(float));
}

constexpr int MOST = 8;  // queries that walk the positions together

struct Query {
  const float* q;  // [d]
  float* out;      // [d]
  int32_t n_seen;
};

inline int padded(int n_seen) { return (n_seen + simd::LANES - 1) / simd::LANES * simd::LANES; }

// Values [k, k + W vectors) of positions [0, n), weighted, into every query's out.
template <int G, int W>
inline void mix(const Cache& c, const int32_t* table, int head, const Query* queries, int n, int k,
                const float* weights, int width, const float* inverse) {
  using namespace simd;
  const int d = c.d, size = c.block_size;
  F acc[G][W];
  for (int i = 0; i < G; ++i)
    for (int w = 0; w < W; ++w) acc[i][w] = zero();
  for (int first = 0; first < n; first += size) {
    const float* value = block_of(c, 1, table[first / size], head) + k;
    const float* coming = block_of(c, 1, table[std::min(first + size, n - 1) / size], head) + k;
    const int last = std::min(size, n - first);
    for (int s = 0; s < last; ++s, value += d, coming += d) {
      F v[W];
      for (int w = 0; w < W; ++w) {
        v[w] = load(value + w * LANES);
        prefetch(coming + w * LANES);
      }
#pragma GCC unroll 8
      for (int i = 0; i < G; ++i) {
        const F weight = set(weights[i * width + first + s]);
        for (int w = 0; w < W; ++w) acc[i][w] = fma(weight, v[w], acc[i][w]);
      }
    }
  }
  for (int i = 0; i < G; ++i)
    for (int w = 0; w < W; ++w)
      store(queries[i].out + k + w * LANES, mul(acc[i][w], set(inverse[i])));
}

// G queries of one request that read key head `head`. scores: scratch [G, padded(longest n_seen)].
template <int G>
inline void together(const Cache& c, const int32_t* table, int head, const Query* queries,
                     float scale, float* scores) {
  using namespace simd;
  const int d = c.d, size = c.block_size;
  int n = 0;
  for (int i = 0; i < G; ++i) n = std::max(n, queries[i].n_seen);
  const int width = padded(n);
  const F by = set(scale);
  for (int first = 0; first < n; first += LANES) {
    const float* keys = block_of(c, 0, table[first / size], head) + first % size;
    // Blocks lie anywhere: no hardware prefetcher finds the next one.
    const int next = std::min(first + LANES, n - 1);
    const float* coming = block_of(c, 0, table[next / size], head) + next % size / LANES * LANES;
    F acc[G];
    for (int i = 0; i < G; ++i) acc[i] = zero();
    for (int k = 0; k < d; ++k) {
      const F key = load(keys + k * size);
      prefetch(coming + k * size);
#pragma GCC unroll 8
      for (int i = 0; i < G; ++i) acc[i] = fma(set(queries[i].q[k]), key, acc[i]);
    }
    for (int i = 0; i < G; ++i) store(scores + i * width + first, mul(acc[i], by));
  }
  float inverse[G];
  for (int i = 0; i < G; ++i) {
    float* row = scores + i * width;
    const int seen = queries[i].n_seen, end = padded(seen);
    std::fill(row + seen, row + end, -INFINITY);  // whatever lies in slots not written yet
    F most = set(-INFINITY);
    for (int p = 0; p < end; p += LANES) most = max(most, load(row + p));
    float lanes[LANES];
    store(lanes, most);
    const F top = set(*std::max_element(lanes, lanes + LANES));
    F total = zero();
    for (int p = 0; p < end; p += LANES) {
      const F weight = exp(sub(load(row + p), top));
      store(row + p, weight);
      if (p + LANES > seen) std::fill(row + seen, row + end, 0.0f);
      total = add(total, load(row + p));
    }
    std::fill(row + end, row + width, 0.0f);
    inverse[i] = 1.0f / sum(total);
  }
  for (int k = 0; k < d;) {
    constexpr int WIDE = G <= 6 ? 4 : 2;  // sums stay in registers
    const int left = (d - k) / LANES;
    const float* weights = scores;
    if (left >= WIDE) mix<G, WIDE>(c, table, head, queries, n, k, weights, width, inverse);
    else if (left >= 2) mix<G, 2>(c, table, head, queries, n, k, weights, width, inverse);
    else mix<G, 1>(c, table, head, queries, n, k, weights, width, inverse);
    k += LANES * (left >= WIDE ? WIDE : left >= 2 ? 2 : 1);
  }
}

template <int G = MOST>
inline void run(const Cache& c, const int32_t* table, int head, const Query* queries, int n,
                float scale, float* scores) {
  if (n == G) return together<G>(c, table, head, queries, scale, scores);
  if constexpr (G > 1) run<G - 1>(c, table, head, queries, n, scale, scores);
}

// Any number of queries, MOST at a time.
inline void all(const Cache& c, const int32_t* table, int head, const Query* queries, int n,
                float scale, float* scores) {
  for (int i = 0; i < n; i += MOST)
    run(c, table, head, queries + i, std::min(MOST, n - i), scale, scores);
}

}  // namespace paged_attention
