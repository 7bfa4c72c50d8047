#include "sentence_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rows.h"

namespace fastadv {
namespace {

// ||x||_2 of a point whose squares sum to `sum` in float32, taken with more care where that left the range.
double l2_size(const float* x, int64_t size, double sum) {
  return is_safe(sum) ? std::sqrt(sum) : measure(x, size, Norm::l2, 0.0f).value();
}

void step_sentence(const SentenceStep& p, int64_t sentence) {
  const int64_t begin = p.cu_seqlens[sentence] * p.embedding_size;
  const int64_t size = p.cu_seqlens[sentence + 1] * p.embedding_size - begin;
  const float* grad = p.grad + begin;
  const float* pgd = p.delta_pgd == nullptr ? nullptr : p.delta_pgd + begin;
  const float* fgsm = p.delta_fgsm == nullptr ? nullptr : p.delta_fgsm + begin;
  float* out_pgd = pgd == nullptr ? nullptr : p.out_pgd + begin;
  float* out_fgsm = fgsm == nullptr ? nullptr : p.out_fgsm + begin;
  // A sign step needs no length of the gradient, but to know that it is finite.
  const Norm norm = pgd == nullptr ? Norm::linf : p.norm;
  const Size grad_size = measure(grad, size, norm, norm == Norm::linf ? 0.0f : first_scale(grad, size));
  if (!grad_size.is_finite) {
    if (pgd != nullptr) std::copy(pgd, pgd + size, out_pgd);
    if (fgsm != nullptr) std::copy(fgsm, fgsm + size, out_fgsm);
    return;
  }
  const bool has_ball = p.epsilon != nullptr;
  const float epsilon = has_ball ? p.epsilon[sentence * p.epsilon_stride] : std::numeric_limits<float>::infinity();
  const float alpha = pgd == nullptr ? 0.0f : p.alpha[sentence * p.alpha_stride];
  const float beta = fgsm == nullptr ? 0.0f : p.beta[sentence * p.beta_stride];
  const float scale = grad_size.scale;
  const float coefficient = scale > 0.0f ? static_cast<float>(alpha / grad_size.scaled) : 0.0f;
  // Clamping to infinity changes nothing: no ball, whatever its norm, goes the way of linf.
  const bool clamps = !has_ball || p.norm == Norm::linf;
  double sum_pgd = 0.0, sum_fgsm = 0.0;
  for (int64_t i = 0; i < size; i += kPiece) {
    const int64_t length = std::min(kPiece, size - i);
    if (pgd != nullptr && clamps) {
      add_scaled_clamped(out_pgd + i, pgd + i, grad + i, scale, coefficient, epsilon, length);
    } else if (pgd != nullptr) {
      sum_pgd += add_scaled_l2(out_pgd + i, pgd + i, grad + i, scale, coefficient, length);
    }
    if (fgsm != nullptr && clamps) {
      add_sign_clamped(out_fgsm + i, fgsm + i, grad + i, beta, epsilon, length);
    } else if (fgsm != nullptr) {
      sum_fgsm += add_sign_l2(out_fgsm + i, fgsm + i, grad + i, beta, length);
    }
  }
  if (clamps) return;
  const bool is_l2 = p.norm == Norm::l2;
  if (pgd != nullptr) project(out_pgd, out_pgd, size, p.norm, epsilon, is_l2 ? l2_size(out_pgd, size, sum_pgd) : 0.0);
  if (fgsm != nullptr) project(out_fgsm, out_fgsm, size, p.norm, epsilon, is_l2 ? l2_size(out_fgsm, size, sum_fgsm) : 0.0);
}

}  // namespace

void step_sentences(int64_t begin, int64_t end, void* step) {
  for (int64_t sentence = begin; sentence < end; ++sentence) {
    step_sentence(*static_cast<const SentenceStep*>(step), sentence);
  }
}

void project_balls(int64_t begin, int64_t end, void* projection) {
  const Projection& p = *static_cast<const Projection*>(projection);
  for (int64_t ball = begin; ball < end; ++ball) {
    const int64_t first = (p.cu_seqlens == nullptr ? ball : p.cu_seqlens[ball]) * p.embedding_size;
    const int64_t last = (p.cu_seqlens == nullptr ? ball + 1 : p.cu_seqlens[ball + 1]) * p.embedding_size;
    const float* x = p.x + first;
    const double size_of_x = p.norm == Norm::l2 ? measure(x, last - first, Norm::l2, 1.0f).value() : 0.0;
    project(p.out + first, x, last - first, p.norm, p.epsilon[ball * p.epsilon_stride], size_of_x);
  }
}

void mix_entries(int64_t begin, int64_t end, void* mix) {
  const Mix& p = *static_cast<const Mix*>(mix);
  combine(p.out + begin, p.delta_pgd + begin, p.delta_fgsm + begin, p.rho, p.rest, end - begin);
}

}  // namespace fastadv
