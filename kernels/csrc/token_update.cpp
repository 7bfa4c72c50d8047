#include "token_update.h"

#include <algorithm>
#include <cmath>

#include "rows.h"

namespace fastadv {
namespace {

// out <- u = eta + step_size * dir(grad) of one token; returns ||u||_P. The norm is summed as u is made, and summed again with
// more care only where that sum left float32's range.
double ascend(const TokenUpdate& p, int64_t token, const Size& grad_size, float step_size) {
  const int64_t size = p.embedding_size;
  const float* eta = p.eta + token * size;
  const float* grad = p.grad + token * size;
  float* u = p.out + token * size;
  const float scale = grad_size.scale;
  const float coefficient = scale > 0.0f ? static_cast<float>(step_size / grad_size.scaled) : 0.0f;
  if (p.norm == Norm::linf) return float_of_bits(add_scaled_linf(u, eta, grad, scale, coefficient, size));
  const double sum = p.norm == Norm::l2 ? add_scaled_l2(u, eta, grad, scale, coefficient, size)
                                        : add_scaled_l1(u, eta, grad, scale, coefficient, size);
  if (is_safe(sum)) return p.norm == Norm::l2 ? std::sqrt(sum) : sum;
  return measure(u, size, p.norm, 0.0f).value();
}

// out <- Π(n * u) for a row u of norm size_of_u.
void scale_and_project(const TokenUpdate& p, int64_t token, double n, const float* epsilon) {
  const int64_t size = p.embedding_size;
  float* row = p.out + token * size;
  if (epsilon != nullptr && p.norm == Norm::linf) {
    return multiply_and_clamp(row, row, static_cast<float>(n), *epsilon, size);
  }
  double factor = n;
  if (epsilon != nullptr && p.norm == Norm::l2 && n * p.size_of_u[token] > *epsilon) factor = *epsilon / p.size_of_u[token];
  if (factor != 1.0) multiply(row, row, static_cast<float>(factor), size);
  if (epsilon != nullptr && p.norm == Norm::l1) project(row, row, size, Norm::l1, *epsilon, 0.0);
}

// A sentence is gone through twice: its rows of out stay in L2 between u and its projection.
void update_sentence(const TokenUpdate& p, int64_t sentence) {
  const int64_t first = p.cu_seqlens[sentence], last = p.cu_seqlens[sentence + 1], size = p.embedding_size;
  const float step_size = p.step_size[sentence * p.step_stride];
  const float* epsilon = p.epsilon == nullptr ? nullptr : p.epsilon + sentence * p.epsilon_stride;
  double largest = 0.0;
  float hint = 0.0f;
  for (int64_t token = first; token < last; ++token) {
    const Size grad_size = measure(p.grad + token * size, size, p.norm, hint);
    if (!grad_size.is_finite) {
      // The rows before this one are written over: the whole sentence keeps its eta.
      std::copy(p.eta + first * size, p.eta + last * size, p.out + first * size);
      return;
    }
    if (grad_size.scale > 0.0f) hint = grad_size.scale;
    p.size_of_u[token] = ascend(p, token, grad_size, step_size);
    if (p.scaling == Scaling::none) continue;
    p.size_of_v[token] =
        p.scaling == Scaling::after ? p.size_of_u[token] : measure(p.eta + token * size, size, p.norm, 1.0f).value();
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
