#include "norms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rows.h"

namespace fastadv {
namespace {

double scaled_sum(const float* x, int64_t size, Norm norm, float scale) {
  double sum = 0.0;
  for (int64_t i = 0; i < size; i += kPiece) {
    const int64_t length = std::min(kPiece, size - i);
    sum += norm == Norm::l2 ? scaled_square_sum(x + i, scale, length) : scaled_magnitude_sum(x + i, scale, length);
  }
  return sum;
}

void copy(float* out, const float* x, int64_t size) {
  if (out != x) std::copy(x, x + size, out);
}

// Michelot's method ("A finite algorithm for finding the projection of a point onto the canonical simplex of R^n", JOTA 50,
// 1986), in double. As in the reference everything is counted down from the largest magnitude, which ends at `level`: the
// entries less than `level` below it are kept, and level = (epsilon + sum of their distances) / their number. Each round is a
// Newton step on a convex function, so it never falls short of the level, and the kept only become fewer.
void project_l1(float* out, const float* x, int64_t size, float epsilon) {
  if (!(wide_magnitude_sum(x, size) > epsilon)) return copy(out, x, size);
  if (!(epsilon > 0.0f)) return std::fill(out, out + size, 0.0f);
  const float largest = float_of_bits(largest_magnitude_bits(x, size));
  double level = std::numeric_limits<double>::infinity(), last_count = level;
  for (;;) {
    const Kept kept = kept_below(x, largest, level, size);
    if (!(kept.count < last_count) || kept.count == 0.0) break;
    level = (epsilon + kept.sum) / kept.count;
    last_count = kept.count;
  }
  shrink(out, x, largest, level, size);
}

}  // namespace

float exact_scale(float x) {
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(1.0f, std::clamp(-exponent, -126, 127));
}

float first_scale(const float* x, int64_t size) {
  for (int64_t i = 0; i < size; i += kPiece) {
    const uint32_t bits = largest_magnitude_bits(x + i, std::min(kPiece, size - i));
    if (bits >= kInfinityBits) return 0.0f;
    if (bits > 0) return exact_scale(float_of_bits(bits));
  }
  return 0.0f;
}

Size measure(const float* x, int64_t size, Norm norm, float hint) {
  if (norm != Norm::linf && hint > 0.0f) {
    const double sum = scaled_sum(x, size, norm, hint);
    if (is_safe(sum)) return {true, hint, norm == Norm::l2 ? std::sqrt(sum) : sum};
  }
  const uint32_t bits = largest_magnitude_bits(x, size);
  const float magnitude = float_of_bits(bits);
  if (bits >= kInfinityBits) return {false, 1.0f, magnitude};
  if (bits == 0) return {true, 0.0f, 0.0};
  const float scale = exact_scale(magnitude);
  if (norm == Norm::linf) return {true, scale, static_cast<double>(scale) * magnitude};
  const double sum = scaled_sum(x, size, norm, scale);
  return {true, scale, norm == Norm::l2 ? std::sqrt(sum) : sum};
}

void project(float* out, const float* x, int64_t size, Norm norm, float epsilon, double size_of_x) {
  if (norm == Norm::linf) return multiply_and_clamp(out, x, 1.0f, epsilon, size);
  if (norm == Norm::l1) return project_l1(out, x, size, epsilon);
  if (size_of_x > epsilon) return multiply(out, x, static_cast<float>(epsilon / size_of_x), size);
  copy(out, x, size);
}

}  // namespace fastadv
