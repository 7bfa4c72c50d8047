// The device's memory, pinned memory, and tensors of two devices over the same bytes.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

using c10::Device;
using c10::DeviceType;

const Device host_device(DeviceType::CPU);
constexpr size_t alignment_bytes = 512;
// Every byte of fresh memory: floats of it are NaN, so that what is read before it is written shows.
constexpr int fresh_byte = 0xFF;

int num_devices = 1;
thread_local int current_device = 0;

void* aligned(size_t num_bytes) {
  const size_t whole = (num_bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  return num_bytes ? std::aligned_alloc(alignment_bytes, whole) : nullptr;
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t num_bytes) override {
    void* bytes = aligned(num_bytes);
    if (bytes) std::memset(bytes, fresh_byte, num_bytes);
    return {bytes, bytes, &std::free, Device(DeviceType::CUDA, current_device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }
};
DeviceAllocator device_memory;

std::mutex pinned_lock;
std::map<const char*, size_t> pinned_blocks;

void free_pinned(void* bytes) {
  {
    std::lock_guard<std::mutex> held(pinned_lock);
    pinned_blocks.erase(static_cast<const char*>(bytes));
  }
  std::free(bytes);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t num_bytes) override {
    void* bytes = aligned(num_bytes);
    if (bytes) {
      std::lock_guard<std::mutex> held(pinned_lock);
      pinned_blocks[static_cast<const char*>(bytes)] = num_bytes;
    }
    return {bytes, bytes, &free_pinned, host_device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }
};
PinnedAllocator pinned_memory;

bool is_pinned(const void* data) {
  std::lock_guard<std::mutex> held(pinned_lock);
  auto block = pinned_blocks.upper_bound(static_cast<const char*>(data));
  if (block == pinned_blocks.begin()) return false;
  --block;
  return static_cast<const char*>(data) < block->first + block->second;
}

struct Kept {
  c10::Storage storage;
};
void let_go(void* kept) { delete static_cast<Kept*>(kept); }

// The tensor of the same bytes, sizes and strides that says it is on `device`.
at::Tensor relabelled(const at::Tensor& t, Device device) {
  const bool to_cuda = device.is_cuda();
  const auto& storage = t.storage();
  auto* allocator = to_cuda ? static_cast<c10::Allocator*>(&device_memory) : c10::GetCPUAllocator();
  c10::DataPtr bytes(storage.mutable_data(), new Kept{storage}, &let_go, device);
  c10::Storage shared(
      c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(bytes), allocator, /*resizable=*/true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(shared), c10::DispatchKeySet(to_cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU), t.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_storage_offset(t.storage_offset());
  impl->set_sizes_and_strides(t.sizes(), t.strides());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

at::Tensor on_host(const at::Tensor& t) { return t.defined() && t.is_cuda() ? relabelled(t, host_device) : t; }

// Makes `self` what `other` is: its bytes, sizes and strides.
void become(const at::Tensor& self, const at::Tensor& other) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(other.storage());
  impl->set_storage_offset(other.storage_offset());
  impl->set_sizes_and_strides(other.sizes(), other.strides());
}

}  // namespace
