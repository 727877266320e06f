// y = gate * sigmoid(gate) * up over n values, a multiple of 16. See reference.py.
#pragma once
#include "../native/simd.h"

namespace silu_mul {

inline void row(const float* gate, const float* up, int n, float* y) {
  using namespace simd;
  for (int i = 0; i < n; i += LANES) {
    const F g = load(gate + i);
    const F below = add(set(1.0f), exp(sub(zero(), g)));
    store(y + i, mul(div(g, below), load(up + i)));
  }
}

}  // namespace silu_mul
