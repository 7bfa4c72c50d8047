#include "eta_table.h"

#include <algorithm>

#include "rows.h"

namespace fastadv {

void read_tokens(int64_t begin, int64_t end, void* read) {
  const TableRead& p = *static_cast<const TableRead*>(read);
  for (int64_t token = begin; token < end; ++token) {
    const float* row = p.table + p.token_ids[token] * p.embedding_size;
    std::copy(row, row + p.embedding_size, p.out + token * p.embedding_size);
  }
}

void write_words(int64_t begin, int64_t end, void* write) {
  const TableWrite& p = *static_cast<const TableWrite*>(write);
  const int64_t size = p.embedding_size;
  for (int64_t word = begin; word < end; ++word) {
    float* row = p.table + p.ids[word] * size;
    // The row itself holds the sum: it is in L1, and nothing else reads the table now.
    std::fill(row, row + size, 0.0f);
    for (int64_t i = p.starts[word]; i < p.starts[word + 1]; ++i) accumulate(row, p.eta + p.order[i] * size, size);
    divide(row, row, static_cast<float>(p.starts[word + 1] - p.starts[word]), size);
  }
}

}  // namespace fastadv
