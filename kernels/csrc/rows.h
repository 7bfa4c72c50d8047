// Loops over one row of E floats, compiled once for each level of x86 and chosen at load time.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(FASTADV_TARGET_CLONES)
#define FASTADV_ROW __attribute__((noinline, target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#elif defined(_MSC_VER)
#define FASTADV_ROW __declspec(noinline)
#else
#define FASTADV_ROW __attribute__((noinline))
#endif

namespace fastadv {

// Largest bit pattern of |x_i|. Magnitudes order as their bits do, with NaN and infinity on top, so that this one integer
// maximum gives the largest magnitude and says whether all are finite.
uint32_t largest_magnitude_bits(const float* x, int64_t size);

constexpr uint32_t kInfinityBits = 0x7f800000u;

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Sum of (scale * x_i)².
float scaled_square_sum(const float* x, float scale, int64_t size);

// u_i = eta_i + coefficient * (scale * grad_i).
void add_scaled(float* u, const float* eta, const float* grad, float scale, float coefficient, int64_t size);

// x_i = factor * x_i.
void multiply(float* x, float factor, int64_t size);

// x_i = factor * x_i, clamped to [-bound, bound].
void multiply_and_clamp(float* x, float factor, float bound, int64_t size);

}  // namespace fastadv
