#include "token_update.h"

#include <algorithm>
#include <cmath>

#include "rows.h"

namespace fastadv {
namespace {

// 2^-exponent(x) for x > 0, as far as float32 holds it: scaling by it is exact, so gradients that differ by a power of two take
// equal steps to the last bit, and no square leaves the range.
float exact_scale(float x) {
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(1.0f, std::clamp(-exponent, -126, 127));
}

double row_size(const float* x, Norm norm, int64_t size) {
  const float magnitude = float_of_bits(largest_magnitude_bits(x, size));
  if (norm == Norm::linf || magnitude == 0.0f || !std::isfinite(magnitude)) return magnitude;
  const float scale = exact_scale(magnitude);
  return std::sqrt(static_cast<double>(scaled_square_sum(x, scale, size))) / scale;
}

// u = eta + step_size * dir(grad), for a finite grad of the given largest magnitude.
void ascend(const TokenUpdate& p, int64_t token, float step_size) {
  const int64_t size = p.embedding_size;
  const float* grad = p.grad + token * size;
  const float magnitude = float_of_bits(p.magnitude_bits[token]);
  float scale = 0.0f, coefficient = 0.0f;
  if (magnitude > 0.0f) {
    scale = exact_scale(magnitude);
    const float length = p.norm == Norm::linf ? scale * magnitude : std::sqrt(scaled_square_sum(grad, scale, size));
    coefficient = step_size / length;
  }
  add_scaled(p.out + token * size, p.eta + token * size, grad, scale, coefficient, size);
}

// out <- Π(n * u) for a row u of norm size_of_u.
void scale_and_project(const TokenUpdate& p, int64_t token, double n, const float* epsilon) {
  float* row = p.out + token * p.embedding_size;
  double factor = n;
  if (epsilon != nullptr && p.norm == Norm::linf) {
    multiply_and_clamp(row, static_cast<float>(n), *epsilon, p.embedding_size);
    return;
  }
  if (epsilon != nullptr && n * p.size_of_u[token] > *epsilon) factor = *epsilon / p.size_of_u[token];
  if (factor != 1.0) multiply(row, static_cast<float>(factor), p.embedding_size);
}

void update_sentence(const TokenUpdate& p, int64_t sentence) {
  const int64_t first = p.cu_seqlens[sentence], last = p.cu_seqlens[sentence + 1], size = p.embedding_size;
  for (int64_t token = first; token < last; ++token) {
    p.magnitude_bits[token] = largest_magnitude_bits(p.grad + token * size, size);
    if (p.magnitude_bits[token] >= kInfinityBits) {
      std::copy(p.eta + first * size, p.eta + last * size, p.out + first * size);
      return;
    }
  }
  const float step_size = p.step_size[sentence * p.step_stride];
  const float* epsilon = p.epsilon == nullptr ? nullptr : p.epsilon + sentence * p.epsilon_stride;
  // linf's ball needs no norm of u: it clamps.
  const bool needs_size_of_u = p.scaling == Scaling::after || (epsilon != nullptr && p.norm == Norm::l2);
  double largest = 0.0;
  for (int64_t token = first; token < last; ++token) {
    ascend(p, token, step_size);
    if (needs_size_of_u) p.size_of_u[token] = row_size(p.out + token * size, p.norm, size);
    if (p.scaling == Scaling::none) continue;
    p.size_of_v[token] =
        p.scaling == Scaling::after ? p.size_of_u[token] : row_size(p.eta + token * size, p.norm, size);
    largest = std::max(largest, p.size_of_v[token]);
  }
  for (int64_t token = first; token < last; ++token) {
    const double n = largest > 0.0 ? p.size_of_v[token] / largest : 1.0;
    scale_and_project(p, token, n, epsilon);
  }
}

}  // namespace

void token_update_sentences(int64_t begin, int64_t end, void* update) {
  for (int64_t sentence = begin; sentence < end; ++sentence) {
    update_sentence(*static_cast<const TokenUpdate*>(update), sentence);
  }
}

}  // namespace fastadv
