// The Python module fastadv_kernels._native. Tensors arrive as addresses, so that no torch header is needed to build it.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "parallel.h"
#include "token_update.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// A thread is worth waking for this many floats.
constexpr int64_t kGrainFloats = 1 << 15;

template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

fastadv::Norm norm_of(const std::string& name) {
  if (name == "linf") return fastadv::Norm::linf;
  if (name == "l2") return fastadv::Norm::l2;
  throw std::invalid_argument("native token_update takes norm linf or l2, got " + name);
}

fastadv::Scaling scaling_of(const std::string& name) {
  if (name == "after") return fastadv::Scaling::after;
  if (name == "before") return fastadv::Scaling::before;
  if (name == "none") return fastadv::Scaling::none;
  throw std::invalid_argument("native token_update takes scaling after, before or none, got " + name);
}

void token_update(uintptr_t eta, uintptr_t grad, uintptr_t out, uintptr_t cu_seqlens, uintptr_t step_size,
                  uintptr_t epsilon, int64_t num_sentences, int64_t num_tokens, int64_t embedding_size,
                  int64_t step_stride, int64_t epsilon_stride, const std::string& norm, const std::string& scaling) {
  const int32_t* offsets = pointer<const int32_t>(cu_seqlens);
  if (offsets[0] != 0 || offsets[num_sentences] != num_tokens || !std::is_sorted(offsets, offsets + num_sentences + 1)) {
    throw std::invalid_argument("cu_seqlens must rise from 0 to the number of tokens, " + std::to_string(num_tokens));
  }
  std::vector<uint32_t> magnitude_bits(num_tokens);
  std::vector<double> size_of_u(num_tokens), size_of_v(num_tokens);
  fastadv::TokenUpdate update{
      pointer<const float>(eta),
      pointer<const float>(grad),
      pointer<float>(out),
      offsets,
      pointer<const float>(step_size),
      pointer<const float>(epsilon),
      num_sentences,
      embedding_size,
      step_stride,
      epsilon_stride,
      norm_of(norm),
      scaling_of(scaling),
      magnitude_bits.data(),
      size_of_u.data(),
      size_of_v.data(),
  };
  const int64_t floats_per_sentence = std::max<int64_t>(1, num_tokens * embedding_size / std::max<int64_t>(1, num_sentences));
  const int64_t grain = std::max<int64_t>(1, kGrainFloats / floats_per_sentence);
  nb::gil_scoped_release release;
  fastadv::parallel_for(num_sentences, grain, fastadv::token_update_sentences, &update);
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "C++ forms of fastadv_kernels' ops for float32 tensors on the CPU";
  module.def(
      "set_parallel_for",
      [](uintptr_t address) { fastadv::torch_parallel_for = reinterpret_cast<fastadv::ParallelFor>(address); },
      "address"_a, "Address of torch's exported C function torch_parallel_for.");
  module.def("token_update", &token_update, "eta"_a, "grad"_a, "out"_a, "cu_seqlens"_a, "step_size"_a, "epsilon"_a,
             "num_sentences"_a, "num_tokens"_a, "embedding_size"_a, "step_stride"_a, "epsilon_stride"_a, "norm"_a,
             "scaling"_a, "One step of eta; addresses of contiguous arrays, epsilon 0 for no ball.");
}
