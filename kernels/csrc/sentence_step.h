// Steps of the sentence-level perturbations and their projections; formulas and meaning in fastadv_kernels/sentence_step.py and
// project.py.
#pragma once

#include <cstdint>

#include "norms.h"

namespace fastadv {

// Either chain may be absent: its delta and out are then null.
struct SentenceStep {
  const float* delta_pgd;     // (T, E)
  const float* delta_fgsm;    // (T, E)
  const float* grad;          // (T, E)
  float* out_pgd;             // (T, E), aliases no input
  float* out_fgsm;            // (T, E), aliases no input
  const int32_t* cu_seqlens;  // (B + 1)
  const float* alpha;         // PGD's step of sentence b at [b * alpha_stride]
  const float* beta;          // FGSM's at [b * beta_stride]
  const float* epsilon;       // radius of sentence b at [b * epsilon_stride], or null for no ball
  int64_t embedding_size;     // E
  int64_t alpha_stride;       // 0 or 1
  int64_t beta_stride;        // 0 or 1
  int64_t epsilon_stride;     // 0 or 1
  Norm norm;
};

// Sentences [begin, end). `step` is a SentenceStep; the type is torch_parallel_for's. Does not throw.
void step_sentences(int64_t begin, int64_t end, void* step);

struct Projection {
  const float* x;             // (T, E)
  float* out;                 // (T, E), is not x
  const int32_t* cu_seqlens;  // (B + 1), or null for a ball per row
  const float* epsilon;       // radius of ball b at [b * epsilon_stride]
  int64_t embedding_size;     // E
  int64_t epsilon_stride;     // 0 or 1
  Norm norm;
};

// Balls [begin, end) of a Projection: sentences, or rows. Does not throw.
void project_balls(int64_t begin, int64_t end, void* projection);

struct Mix {
  const float* delta_pgd;   // (n)
  const float* delta_fgsm;  // (n)
  float* out;               // (n), aliases neither
  float rho;
  float rest;  // 1 - rho
};

// Entries [begin, end) of a Mix. Does not throw.
void mix_entries(int64_t begin, int64_t end, void* mix);

}  // namespace fastadv
