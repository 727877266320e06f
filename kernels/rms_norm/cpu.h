// See reference.py. d is a multiple of 16.
#pragma once
#include "../native/simd.h"

namespace rms_norm {

inline void row(const float* x, const float* weight, int d, float eps, float* y) {
  using namespace simd;
  F total = zero();
  for (int i = 0; i < d; i += LANES) {
    const F v = load(x + i);
    total = fma(v, v, total);
  }
  const F by = set(1.0f / std::sqrt(sum(total) / static_cast<float>(d) + eps));
  for (int i = 0; i < d; i += LANES) store(y + i, mul(mul(load(x + i), by), load(weight + i)));
}

}  // namespace rms_norm
