// Loops over a run of floats, compiled once for each level of x86 and chosen at load time.
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

// Sum of |scale * x_i|.
float scaled_magnitude_sum(const float* x, float scale, int64_t size);

// u_i = x_i + coefficient * (scale * g_i). Each returns what one norm of u needs, taken while u is in registers: the bits of
// its largest magnitude, its sum of squares, its sum of magnitudes. The last clamps u to [-bound, bound] instead.
uint32_t add_scaled_linf(float* u, const float* x, const float* g, float scale, float coefficient, int64_t size);
float add_scaled_l2(float* u, const float* x, const float* g, float scale, float coefficient, int64_t size);
float add_scaled_l1(float* u, const float* x, const float* g, float scale, float coefficient, int64_t size);
void add_scaled_clamped(float* u, const float* x, const float* g, float scale, float coefficient, float bound, int64_t size);

// u_i = x_i + step * sign(g_i), sign(0) = 0; the first returns the sum of squares of u, the second clamps it.
float add_sign_l2(float* u, const float* x, const float* g, float step, int64_t size);
void add_sign_clamped(float* u, const float* x, const float* g, float step, float bound, int64_t size);

// out_i = factor * x_i; out may be x.
void multiply(float* out, const float* x, float factor, int64_t size);

// out_i = factor * x_i, clamped to [-bound, bound]; out may be x.
void multiply_and_clamp(float* out, const float* x, float factor, float bound, int64_t size);

// out_i = a * x_i + b * y_i.
void combine(float* out, const float* x, const float* y, float a, float b, int64_t size);

// sum_i += x_i.
void accumulate(float* sum, const float* x, int64_t size);

// out_i = x_i / divisor.
void divide(float* out, const float* x, float divisor, int64_t size);

// Sum of |x_i| in double.
double wide_magnitude_sum(const float* x, int64_t size);

// Of the distances b_i = largest - |x_i| those below `level`: their sum and their count.
struct Kept {
  double sum;
  double count;
};
Kept kept_below(const float* x, float largest, double level, int64_t size);

// out_i = sign(x_i) * max(level - (largest - |x_i|), 0); out may be x.
void shrink(float* out, const float* x, float largest, double level, int64_t size);

}  // namespace fastadv
