// A CUDA device made of host memory, for a torch that was built without CUDA.
//
// Tensors on it say device cuda:0, dispatch by the CUDA key, and have streams for autograd. Every operation runs the
// CPU's kernel on the same bytes, after what CUDA would refuse has been refused. Operations are counted; what would make
// the host wait for a GPU, and copies between host and device, are told to a watcher. One translation unit: most of the
// time that it takes to compile is torch's headers.
#include <torch/library.h>

#include "attention.h"
#include "counts.h"
#include "fallback.h"
#include "guard.h"
#include "memory.h"
#include "own_kernels.h"

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty_sized);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("view", &view);
  m.impl("as_strided", &as_strided);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
  m.impl("resize_", &resize_);
  m.impl("native_dropout", &native_dropout);
  m.impl("record_stream", &record_stream);
  m.impl("_scaled_dot_product_efficient_attention", &efficient_attention);
  m.impl("_scaled_dot_product_efficient_attention_backward", &efficient_attention_backward);
  // One kernel on CUDA; without an entry of its own it would be taken apart.
  m.impl("native_layer_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY(pretended_gpu, m) {
  m.def("rng_state(int device) -> Tensor", [](int64_t device) { return generator_of(device).get_state(); });
  m.def("set_rng_state(int device, Tensor state) -> ()", [](int64_t device, const at::Tensor& state) {
    generator_of(device).set_state(state.clone());
  });
  m.def("seed(int device, int seed) -> ()", [](int64_t device, int64_t seed) {
    generator_of(device).set_current_seed(seed);
  });
  // A device tensor's bytes as a host tensor: for what stands for NCCL, and for nothing else.
  m.def("bytes(Tensor x) -> Tensor", [](const at::Tensor& x) { return on_host(x.detach()); });
}

extern "C" {
void set_num_devices(int num) { num_devices = num; }
void set_device(int device) { current_device = device; }
int get_device() { return current_device; }
void set_watcher(Watcher told) { watcher = told; }
void reset_counts() {
  std::lock_guard<std::mutex> held(counts_lock);
  counts.clear();
}
// Lines of name, tab, number; returns how many bytes they are, and writes them where `size` is more.
long read_counts(char* out, long size) {
  std::lock_guard<std::mutex> held(counts_lock);
  std::string lines;
  for (auto& [name, number] : counts) lines += name + "\t" + std::to_string(number) + "\n";
  if (static_cast<long>(lines.size()) < size) std::memcpy(out, lines.c_str(), lines.size() + 1);
  return lines.size();
}
}
