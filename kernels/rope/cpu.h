// Turns neighbouring pairs (2i, 2i + 1) of one head, d a multiple of 16. See reference.py.
#pragma once
#include "../native/simd.h"

namespace rope {

// turns: [d / 2] pairs of cosine and sine.
inline void head(float* x, const float* turns, int d) {
  using namespace simd;
  for (int i = 0; i < d; i += LANES) {
    const F turn = load(turns + i), v = load(x + i);
    store(x + i, fma_alternate(v, evens(turn), mul(swapped(v), odds(turn))));
  }
}

}  // namespace rope
