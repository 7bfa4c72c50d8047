// Norms of a run of floats that neither overflow nor underflow, and the projections on their balls.
#pragma once

#include <cstdint>

namespace fastadv {

enum class Norm { linf, l2, l1 };

// Sums run in float32 over this many entries, with one lane of partial sums for each element of a vector register, and in
// double over the pieces. Small enough that a piece of three arrays stays in L1.
constexpr int64_t kPiece = 1024;

struct Size {
  bool is_finite;
  float scale;    // an exact power of two; 0 for zeros
  double scaled;  // scale * ||x||_P

  double value() const { return scale > 0.0f ? scaled / scale : 0.0; }
};

// 2^-exponent(x) for x > 0, as far as float32 holds it: scaling by it is exact, so gradients that differ by a power of two take
// equal steps to the last bit, and no square leaves the range.
float exact_scale(float x);

// The scale of the first piece of x that is not zero; 0 where there is none or it is not finite.
float first_scale(const float* x, int64_t size);

// ||x||_P. For l2 and l1 one pass at the scale `hint`, where that keeps the sum in range; otherwise, and with hint 0, the
// largest magnitude is looked for first, as linf always does.
Size measure(const float* x, int64_t size, Norm norm, float hint);

// Whether a float32 sum of squares or magnitudes is the norm's to rounding: nothing that counts overflowed or was lost below
// the range. False for NaN.
inline bool is_safe(double sum) { return sum > 0x1p-60 && sum < 0x1p100; }

// out <- the nearest point to x in the ball of radius epsilon; out may be x. `size_of_x` is ||x||_2, looked at for l2 alone.
void project(float* out, const float* x, int64_t size, Norm norm, float epsilon, double size_of_x);

}  // namespace fastadv
