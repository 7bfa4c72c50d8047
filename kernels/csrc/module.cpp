// The Python module fastadv_kernels._native. Tensors arrive as addresses, so that no torch header is needed to build it; that
// they are contiguous, of the right type and shape is seen to in Python. What they hold is checked here.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "dropout.h"
#include "eta_table.h"
#include "parallel.h"
#include "sentence_step.h"
#include "token_update.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Address = uintptr_t;

// A thread is worth waking for this many floats.
constexpr int64_t kGrainFloats = 1 << 15;

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

fastadv::Norm norm_of(const std::string& name) {
  if (name == "linf") return fastadv::Norm::linf;
  if (name == "l2") return fastadv::Norm::l2;
  if (name == "l1") return fastadv::Norm::l1;
  throw std::invalid_argument("norm is '" + name + "'; allowed: linf, l2, l1");
}

fastadv::Scaling scaling_of(const std::string& name) {
  if (name == "after") return fastadv::Scaling::after;
  if (name == "before") return fastadv::Scaling::before;
  if (name == "none") return fastadv::Scaling::none;
  throw std::invalid_argument("scaling is '" + name + "'; allowed: after, before, none");
}

template <class T>
const T* offsets_of(Address address, int64_t size, int64_t total, const char* name, const char* what) {
  const T* offsets = pointer<const T>(address);
  if (offsets[0] != 0 || offsets[size] != total || !std::is_sorted(offsets, offsets + size + 1)) {
    throw std::invalid_argument(std::string(name) + " must rise from 0 to the number of " + what + ", " +
                                std::to_string(total));
  }
  return offsets;
}

const int64_t* indices_of(Address address, int64_t size, int64_t limit, const char* name) {
  const int64_t* indices = pointer<const int64_t>(address);
  for (int64_t i = 0; i < size; ++i) {
    if (indices[i] < 0 || indices[i] >= limit) {
      throw nb::index_error((std::string(name) + " holds " + std::to_string(indices[i]) + "; allowed: 0 to " +
                             std::to_string(limit - 1)).c_str());
    }
  }
  return indices;
}

// Runs `function` over `count` items that share `floats` floats among them.
void run(int64_t count, int64_t floats, fastadv::RangeFunction function, void* context) {
  if (count == 0) return;
  const int64_t grain = std::max<int64_t>(1, kGrainFloats / std::max<int64_t>(1, floats / count));
  nb::gil_scoped_release release;
  fastadv::parallel_for(count, grain, function, context);
}

void token_update(Address eta, Address grad, Address out, Address cu_seqlens, Address step_size, Address epsilon,
                  int64_t num_sentences, int64_t num_tokens, int64_t embedding_size, int64_t step_stride,
                  int64_t epsilon_stride, const std::string& norm, const std::string& scaling) {
  std::vector<double> size_of_u(num_tokens), size_of_v(num_tokens);
  fastadv::TokenUpdate update{
      pointer<const float>(eta),
      pointer<const float>(grad),
      pointer<float>(out),
      offsets_of<int32_t>(cu_seqlens, num_sentences, num_tokens, "cu_seqlens", "tokens"),
      pointer<const float>(step_size),
      pointer<const float>(epsilon),
      embedding_size,
      step_stride,
      epsilon_stride,
      norm_of(norm),
      scaling_of(scaling),
      size_of_u.data(),
      size_of_v.data(),
  };
  run(num_sentences, num_tokens * embedding_size, fastadv::token_update_sentences, &update);
}

void sentence_step(Address delta_pgd, Address delta_fgsm, Address grad, Address out_pgd, Address out_fgsm, Address cu_seqlens,
                   Address alpha, Address beta, Address epsilon, int64_t num_sentences, int64_t num_tokens,
                   int64_t embedding_size, int64_t alpha_stride, int64_t beta_stride, int64_t epsilon_stride,
                   const std::string& norm) {
  fastadv::SentenceStep step{
      pointer<const float>(delta_pgd),
      pointer<const float>(delta_fgsm),
      pointer<const float>(grad),
      pointer<float>(out_pgd),
      pointer<float>(out_fgsm),
      offsets_of<int32_t>(cu_seqlens, num_sentences, num_tokens, "cu_seqlens", "tokens"),
      pointer<const float>(alpha),
      pointer<const float>(beta),
      pointer<const float>(epsilon),
      embedding_size,
      alpha_stride,
      beta_stride,
      epsilon_stride,
      norm_of(norm),
  };
  run(num_sentences, num_tokens * embedding_size, fastadv::step_sentences, &step);
}

void project(Address x, Address out, Address cu_seqlens, Address epsilon, int64_t num_balls, int64_t num_tokens,
             int64_t embedding_size, int64_t epsilon_stride, const std::string& norm) {
  fastadv::Projection projection{
      pointer<const float>(x),
      pointer<float>(out),
      cu_seqlens == 0 ? nullptr : offsets_of<int32_t>(cu_seqlens, num_balls, num_tokens, "cu_seqlens", "tokens"),
      pointer<const float>(epsilon),
      embedding_size,
      epsilon_stride,
      norm_of(norm),
  };
  run(num_balls, num_tokens * embedding_size, fastadv::project_balls, &projection);
}

void mix_chains(Address delta_pgd, Address delta_fgsm, Address out, int64_t size, double rho) {
  fastadv::Mix mix{pointer<const float>(delta_pgd), pointer<const float>(delta_fgsm), pointer<float>(out),
                   static_cast<float>(rho), static_cast<float>(1 - rho)};
  run(size, size, fastadv::mix_entries, &mix);
}

void eta_table_read(Address table, Address token_ids, Address out, int64_t num_words, int64_t num_tokens,
                    int64_t embedding_size) {
  fastadv::TableRead read{pointer<const float>(table), indices_of(token_ids, num_tokens, num_words, "token_ids"),
                          pointer<float>(out), embedding_size};
  run(num_tokens, num_tokens * embedding_size, fastadv::read_tokens, &read);
}

void eta_table_write_mean(Address table, Address ids, Address order, Address starts, Address eta, int64_t vocab_size,
                          int64_t num_written, int64_t num_positions, int64_t num_tokens, int64_t embedding_size) {
  fastadv::TableWrite write{
      pointer<float>(table),
      indices_of(ids, num_written, vocab_size, "ids"),
      indices_of(order, num_positions, num_tokens, "order"),
      offsets_of<int64_t>(starts, num_written, num_positions, "starts", "positions"),
      pointer<const float>(eta),
      embedding_size,
  };
  run(num_written, num_positions * embedding_size, fastadv::write_words, &write);
}

template <class T>
fastadv::Dropout<T> dropout_of(Address x, Address out, uint64_t seed, uint32_t threshold, float scale) {
  return {pointer<const T>(x), pointer<T>(out), static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
          threshold,           scale};
}

void dropout(Address x, Address out, Address seed, int64_t size, uint32_t threshold, float scale, bool is_bfloat16) {
  const uint64_t key = *pointer<const uint64_t>(seed);
  if (is_bfloat16) {
    auto call = dropout_of<fastadv::Bfloat16>(x, out, key, threshold, scale);
    run(size, size, fastadv::drop_bfloat16s, &call);
  } else {
    auto call = dropout_of<float>(x, out, key, threshold, scale);
    run(size, size, fastadv::drop_floats, &call);
  }
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() =
      "C++ forms of fastadv_kernels' ops for float32 tensors on the CPU. Arguments are addresses of contiguous arrays; 0 stands "
      "for what is left out.";
  module.def(
      "set_parallel_for",
      [](Address address) { fastadv::torch_parallel_for = reinterpret_cast<fastadv::ParallelFor>(address); },
      "address"_a, "Address of torch's exported C function torch_parallel_for.");
  module.def("token_update", &token_update, "eta"_a, "grad"_a, "out"_a, "cu_seqlens"_a, "step_size"_a, "epsilon"_a,
             "num_sentences"_a, "num_tokens"_a, "embedding_size"_a, "step_stride"_a, "epsilon_stride"_a, "norm"_a,
             "scaling"_a, "One step of eta.");
  module.def("sentence_step", &sentence_step, "delta_pgd"_a, "delta_fgsm"_a, "grad"_a, "out_pgd"_a, "out_fgsm"_a,
             "cu_seqlens"_a, "alpha"_a, "beta"_a, "epsilon"_a, "num_sentences"_a, "num_tokens"_a, "embedding_size"_a,
             "alpha_stride"_a, "beta_stride"_a, "epsilon_stride"_a, "norm"_a, "One step of PGD, of FGSM, or of both.");
  module.def("project", &project, "x"_a, "out"_a, "cu_seqlens"_a, "epsilon"_a, "num_balls"_a, "num_tokens"_a,
             "embedding_size"_a, "epsilon_stride"_a, "norm"_a, "The nearest points in balls of sentences or of rows.");
  module.def("mix_chains", &mix_chains, "delta_pgd"_a, "delta_fgsm"_a, "out"_a, "size"_a, "rho"_a,
             "rho * delta_pgd + (1 - rho) * delta_fgsm.");
  module.def("dropout", &dropout, "x"_a, "out"_a, "seed"_a, "size"_a, "threshold"_a, "scale"_a, "is_bfloat16"_a,
             "Elements kept and scaled, or 0, by a hash of the seed and their place.");
  module.def("eta_table_read", &eta_table_read, "table"_a, "token_ids"_a, "out"_a, "num_words"_a, "num_tokens"_a,
             "embedding_size"_a, "Rows of the table.");
  module.def("eta_table_write_mean", &eta_table_write_mean, "table"_a, "ids"_a, "order"_a, "starts"_a, "eta"_a,
             "vocab_size"_a, "num_written"_a, "num_positions"_a, "num_tokens"_a, "embedding_size"_a,
             "Rows of the table, each a mean of rows of eta.");
}
