// The table of token-level perturbations; meaning in fastadv_kernels/eta_table.py.
#pragma once

#include <cstdint>

namespace fastadv {

struct TableRead {
  const float* table;        // (V, E)
  const int64_t* token_ids;  // (T), each in [0, V)
  float* out;                // (T, E)
  int64_t embedding_size;    // E
};

// Tokens [begin, end) of a TableRead. Does not throw.
void read_tokens(int64_t begin, int64_t end, void* read);

struct TableWrite {
  float* table;            // (V, E)
  const int64_t* ids;      // (U), distinct, each in [0, V)
  const int64_t* order;    // positions in eta, those of one word together
  const int64_t* starts;   // (U + 1), where each word's positions start in order
  const float* eta;        // (T, E)
  int64_t embedding_size;  // E
};

// Words [begin, end) of a TableWrite: each row the mean of its positions, added up in their order. Does not throw.
void write_words(int64_t begin, int64_t end, void* write);

}  // namespace fastadv
