// One query token against the cached positions [0, n_seen) of its request. Layout: spec.py.
// Positions are taken in order, so neither the batch nor the prompt's chunks change a result.
#pragma once
#include "../native/simd.h"

namespace paged_attention {

struct Cache {
  float* data;  // one layer: [2, n_blocks, kv_heads, block_size, d]
  int32_t n_blocks, kv_heads, block_size, d;
};

inline float* at(const Cache& c, int side, int block, int head, int slot) {
  const int64_t head_at = (static_cast<int64_t>(side) * c.n_blocks + block) * c.kv_heads + head;
  return c.data + (head_at * c.block_size + slot) * c.d;
}

constexpr int TOGETHER = 4;  // query heads that share one pass over keys and values

// G query heads that read key head `head`: q and out [G, d] (rows `stride` apart); scores
// [G, n_seen] is scratch, its rows padded to a multiple of 16.
template <int G>
inline void heads(const Cache& c, const int32_t* table, int n_seen, int head, const float* q,
                  int64_t stride, float scale, float* scores, float* out) {
  using namespace simd;
  const int d = c.d, padded = (n_seen + LANES - 1) / LANES * LANES;
  float top[G];
  for (int i = 0; i < G; ++i) top[i] = -INFINITY;
  for (int first = 0, b = 0; first < n_seen; first += c.block_size, ++b) {
    const float* key = at(c, 0, table[b], head, 0);
    const int n = std::min(c.block_size, n_seen - first);
    for (int s = 0; s < n; ++s, key += d) {
      F acc[G];
      for (int i = 0; i < G; ++i) acc[i] = zero();
      for (int k = 0; k < d; k += LANES) {
        const F v = load(key + k);
        for (int i = 0; i < G; ++i) acc[i] = fma(load(q + i * stride + k), v, acc[i]);
      }
      for (int i = 0; i < G; ++i) {
        const float score = sum(acc[i]) * scale;
        scores[i * padded + first + s] = score;
        top[i] = score > top[i] ? score : top[i];
      }
    }
  }
  float total[G];
  for (int i = 0; i < G; ++i) {
    float* row = scores + i * padded;
    for (int p = n_seen; p < padded; ++p) row[p] = -INFINITY;
    F sums = zero();
    for (int p = 0; p < padded; p += LANES) {
      const F weight = exp(sub(load(row + p), set(top[i])));
      store(row + p, weight);
      if (p + LANES > n_seen)  // what is past the end counts nothing
        for (int j = n_seen; j < padded; ++j) row[j] = 0;
      sums = add(sums, load(row + p));
    }
    total[i] = sum(sums);
  }
  for (int k = 0; k < d; k += 2 * LANES) {
    const bool two = k + LANES < d;
    F acc[G][2];
    for (int i = 0; i < G; ++i) acc[i][0] = acc[i][1] = zero();
    for (int first = 0, b = 0; first < n_seen; first += c.block_size, ++b) {
      const float* value = at(c, 1, table[b], head, 0) + k;
      const int n = std::min(c.block_size, n_seen - first);
      for (int s = 0; s < n; ++s, value += d) {
        const F v0 = load(value), v1 = two ? load(value + LANES) : zero();
        for (int i = 0; i < G; ++i) {
          const F weight = set(scores[i * padded + first + s]);
          acc[i][0] = fma(weight, v0, acc[i][0]);
          acc[i][1] = fma(weight, v1, acc[i][1]);
        }
      }
    }
    for (int i = 0; i < G; ++i) {
      const F by = set(1.0f / total[i]);
      store(out + i * stride + k, mul(acc[i][0], by));
      if (two) store(out + i * stride + k + LANES, mul(acc[i][1], by));
    }
  }
}

// All `share` query heads of one key head.
inline void group(const Cache& c, const int32_t* table, int n_seen, int head, int share,
                  const float* q, float scale, float* scores, float* out) {
  int i = 0;
  for (; i + 4 <= share; i += 4)
    heads<4>(c, table, n_seen, head, q + i * c.d, c.d, scale, scores, out + i * c.d);
  const float* rest = q + i * c.d;
  float* to = out + i * c.d;
  if (share - i == 3) heads<3>(c, table, n_seen, head, rest, c.d, scale, scores, to);
  if (share - i == 2) heads<2>(c, table, n_seen, head, rest, c.d, scale, scores, to);
  if (share - i == 1) heads<1>(c, table, n_seen, head, rest, c.d, scale, scores, to);
}

}  // namespace paged_attention
