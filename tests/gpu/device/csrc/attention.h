// CUDA's fused attention with a mask, for which the CPU's stands. The CPU's has no dropout.
#pragma once

#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include <array>
#include <tuple>

#include "counts.h"
#include "memory.h"

namespace {

int64_t choose_attention(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double dropout_p, bool,
    std::optional<double>, bool) {
  const auto chosen = dropout_p == 0 ? sdp::SDPBackend::efficient_attention : sdp::SDPBackend::math;
  return static_cast<int64_t>(chosen);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const std::optional<at::Tensor>& bias,
    bool, double, bool is_causal, std::optional<double> scale) {
  count("aten::_scaled_dot_product_efficient_attention");
  const auto device = query.device();
  const auto bias_on_host = bias && bias->defined() ? std::optional<at::Tensor>(on_host(*bias)) : std::nullopt;
  auto [out, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
      on_host(query), on_host(key), on_host(value), 0.0, is_causal, bias_on_host, scale);
  const auto seed = relabelled(at::empty({}, at::TensorOptions().dtype(at::kLong)), device);
  return {relabelled(out, device), relabelled(log_sum, device), seed, seed};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, const at::Tensor& out, const at::Tensor& log_sum, const at::Tensor&, const at::Tensor&,
    double, std::array<bool, 4>, bool is_causal, std::optional<double> scale) {
  count("aten::_scaled_dot_product_efficient_attention_backward");
  const auto device = query.device();
  const auto bias_on_host = bias.defined() ? std::optional<at::Tensor>(on_host(bias)) : std::nullopt;
  auto [grad_query, grad_key, grad_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      on_host(grad), on_host(query), on_host(key), on_host(value), on_host(out), on_host(log_sum), 0.0, is_causal,
      bias_on_host, scale);
  return {relabelled(grad_query, device), relabelled(grad_key, device), relabelled(grad_value, device), at::Tensor()};
}

struct Chooser {
  Chooser() { at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention); }
} chooser;

}  // namespace
