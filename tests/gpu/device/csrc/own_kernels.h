// Operations that make memory, share it or copy it: the fallback cannot stand for them.
#pragma once

#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>

#include <tuple>

#include "counts.h"
#include "guard.h"
#include "memory.h"

namespace {

// Holds the device that memory is made on.
struct On {
  int before = current_device;
  explicit On(std::optional<Device> device) {
    if (device && device->index() >= 0) current_device = device->index();
  }
  ~On() { current_device = before; }
};

const c10::DispatchKeySet cuda_keys(c10::DispatchKey::CUDA);

at::Tensor empty_sized(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  On on(device);
  const auto type = dtype.value_or(at::get_default_dtype_as_scalartype());
  return at::detail::empty_generic(size, &device_memory, cuda_keys, type, format);
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool>) {
  On on(device);
  const auto type = dtype.value_or(at::get_default_dtype_as_scalartype());
  return at::detail::empty_strided_generic(size, stride, &device_memory, cuda_keys, type);
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  if (self.is_cuda() && from.is_cuda()) {
    count("aten::copy_");
  } else if (from.numel() > 0) {
    const bool to_device = self.is_cuda();
    const bool pinned = is_pinned((to_device ? from : self).storage().data());
    // Without pinned memory the driver copies through a buffer of its own, whatever non_blocking says.
    if (!to_device)
      tell(non_blocking && pinned ? "d2h-async" : "sync", "aten::copy_ to host");
    else if (non_blocking)
      tell(pinned ? "h2d-async" : "h2d-pageable", "aten::copy_");
    else
      tell(pinned ? "h2d-wait-pinned" : "h2d-wait", "aten::copy_");
  }
  on_host(self).copy_(on_host(from));
  return self;
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }

at::Tensor as_strided(
    const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, std::nullopt);
}

at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  const auto unfolded = on_host(self).unfold(dim, size, step);
  return at::native::as_strided_tensorimpl(self, unfolded.sizes(), unfolded.strides(), unfolded.storage_offset());
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source);
  impl->set_storage_offset(offset);
  if (stride.size() == size.size() && (stride.data() != nullptr || size.size() == 0))
    impl->set_sizes_and_strides(size, stride);
  else
    impl->set_sizes_contiguous(size);
  return self;
}

at::Tensor& set_whole(at::Tensor& self, at::Storage source) {
  const int64_t length = source.nbytes() / self.dtype().itemsize();
  return set_storage(self, source, 0, {length}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  become(self, source);
  return self;
}

at::Tensor& set_empty(at::Tensor& self) {
  const auto made = empty_sized({0}, self.scalar_type(), std::nullopt, self.device(), std::nullopt, std::nullopt);
  return set_storage(self, made.storage(), 0, {0}, {1});
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto resized = on_host(self);
  resized.resize_(size, format);
  become(self, relabelled(resized, self.device()));
  return self;
}

// One kernel on CUDA. The CPU's draws from the host's generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> is_training) {
  count("aten::native_dropout");
  const auto device = input.device();
  const auto host = on_host(input);
  const double kept = is_training.value_or(true) ? 1 - p : 1;
  const auto mask = at::empty(host.sizes(), host.options().dtype(at::kBool)).bernoulli_(kept, generator_of(device.index()));
  const auto out = host * mask * (kept == 0 ? 0.0 : 1 / kept);
  return {relabelled(out, device), relabelled(mask, device)};
}

void record_stream(at::Tensor&, c10::Stream) {}

}  // namespace
