#include "rows.h"

namespace fastadv {

FASTADV_ROW uint32_t largest_magnitude_bits(const float* x, int64_t size) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

FASTADV_ROW float scaled_square_sum(const float* x, float scale, int64_t size) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    const float scaled = scale * x[i];
    sum += scaled * scaled;
  }
  return sum;
}

FASTADV_ROW void add_scaled(float* __restrict u, const float* __restrict eta, const float* __restrict grad, float scale,
                            float coefficient, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    u[i] = eta[i] + coefficient * (scale * grad[i]);
  }
}

FASTADV_ROW void multiply(float* x, float factor, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    x[i] = factor * x[i];
  }
}

FASTADV_ROW void multiply_and_clamp(float* x, float factor, float bound, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const float scaled = factor * x[i];
    const float below = scaled > bound ? bound : scaled;
    x[i] = below < -bound ? -bound : below;
  }
}

}  // namespace fastadv
