// One step of the token-level perturbation; formula and meaning in fastadv_kernels/token_update.py.
#pragma once

#include <cstdint>

#include "norms.h"

namespace fastadv {

enum class Scaling { after, before, none };

struct TokenUpdate {
  const float* eta;           // (T, E)
  const float* grad;          // (T, E)
  float* out;                 // (T, E), aliases neither
  const int32_t* cu_seqlens;  // (B + 1)
  const float* step_size;     // gamma of sentence b at [b * step_stride]
  const float* epsilon;       // radius of sentence b at [b * epsilon_stride], or null for no ball
  int64_t embedding_size;     // E
  int64_t step_stride;        // 0 or 1
  int64_t epsilon_stride;     // 0 or 1
  Norm norm;
  Scaling scaling;
  double* size_of_u;          // (T) scratch: ||u_i||
  double* size_of_v;          // (T) scratch: ||v_i||, what n_i is taken from
};

// Sentences [begin, end). `update` is a TokenUpdate; the type is torch_parallel_for's. Does not throw.
void token_update_sentences(int64_t begin, int64_t end, void* update);

}  // namespace fastadv
