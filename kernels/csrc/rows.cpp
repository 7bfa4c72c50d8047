#include "rows.h"

#include <cmath>

namespace fastadv {
namespace {

inline uint32_t magnitude_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

// NaN stays NaN, as in torch.clamp.
inline float clamped(float x, float bound) {
  const float below = x > bound ? bound : x;
  return below < -bound ? -bound : below;
}

// The sign, times step: exactly step, -step or 0.
inline float signed_step(float g, float step) { return g > 0.0f ? step : (g < 0.0f ? -step : 0.0f); }

}  // namespace

FASTADV_ROW uint32_t largest_magnitude_bits(const float* x, int64_t size) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = magnitude_bits(x[i]);
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

FASTADV_ROW float scaled_magnitude_sum(const float* x, float scale, int64_t size) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    sum += std::fabs(scale * x[i]);
  }
  return sum;
}

FASTADV_ROW uint32_t add_scaled_linf(float* __restrict u, const float* __restrict x, const float* __restrict g, float scale,
                                     float coefficient, int64_t size) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < size; ++i) {
    const float moved = x[i] + coefficient * (scale * g[i]);
    u[i] = moved;
    const uint32_t bits = magnitude_bits(moved);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

FASTADV_ROW float add_scaled_l2(float* __restrict u, const float* __restrict x, const float* __restrict g, float scale,
                                float coefficient, int64_t size) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    const float moved = x[i] + coefficient * (scale * g[i]);
    u[i] = moved;
    sum += moved * moved;
  }
  return sum;
}

FASTADV_ROW float add_scaled_l1(float* __restrict u, const float* __restrict x, const float* __restrict g, float scale,
                                float coefficient, int64_t size) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    const float moved = x[i] + coefficient * (scale * g[i]);
    u[i] = moved;
    sum += std::fabs(moved);
  }
  return sum;
}

FASTADV_ROW void add_scaled_clamped(float* __restrict u, const float* __restrict x, const float* __restrict g, float scale,
                                    float coefficient, float bound, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    u[i] = clamped(x[i] + coefficient * (scale * g[i]), bound);
  }
}

FASTADV_ROW float add_sign_l2(float* __restrict u, const float* __restrict x, const float* __restrict g, float step,
                              int64_t size) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    const float moved = x[i] + signed_step(g[i], step);
    u[i] = moved;
    sum += moved * moved;
  }
  return sum;
}

FASTADV_ROW void add_sign_clamped(float* __restrict u, const float* __restrict x, const float* __restrict g, float step,
                                  float bound, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    u[i] = clamped(x[i] + signed_step(g[i], step), bound);
  }
}

FASTADV_ROW void multiply(float* out, const float* x, float factor, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    out[i] = factor * x[i];
  }
}

FASTADV_ROW void multiply_and_clamp(float* out, const float* x, float factor, float bound, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    out[i] = clamped(factor * x[i], bound);
  }
}

FASTADV_ROW void combine(float* __restrict out, const float* x, const float* y, float a, float b, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    out[i] = a * x[i] + b * y[i];
  }
}

FASTADV_ROW void accumulate(float* __restrict sum, const float* __restrict x, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    sum[i] += x[i];
  }
}

FASTADV_ROW void divide(float* out, const float* x, float divisor, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    out[i] = x[i] / divisor;
  }
}

FASTADV_ROW double wide_magnitude_sum(const float* x, int64_t size) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) {
    sum += std::fabs(static_cast<double>(x[i]));
  }
  return sum;
}

FASTADV_ROW Kept kept_below(const float* x, float largest, double level, int64_t size) {
  const double top = largest;
  double sum = 0.0, count = 0.0;
#pragma omp simd reduction(+ : sum, count)
  for (int64_t i = 0; i < size; ++i) {
    const double below = top - std::fabs(static_cast<double>(x[i]));
    sum += below < level ? below : 0.0;
    count += below < level ? 1.0 : 0.0;
  }
  return {sum, count};
}

FASTADV_ROW void shrink(float* out, const float* x, float largest, double level, int64_t size) {
  const double top = largest;
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const double left = level - (top - std::fabs(static_cast<double>(x[i])));
    const float magnitude = static_cast<float>(left > 0.0 ? left : 0.0);
    out[i] = x[i] < 0.0f ? -magnitude : magnitude;
  }
}

}  // namespace fastadv
