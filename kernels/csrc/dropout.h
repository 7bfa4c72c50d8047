// Dropout whose mask is a function of a key and an element's place; meaning in fastadv_kernels/dropout.py.
#pragma once

#include <cstdint>

namespace fastadv {

template <class T>
struct Dropout {
  const T* x;
  T* out;
  uint32_t key_low, key_high;
  uint32_t threshold;  // an element whose draw is below it is dropped
  float scale;         // of those that are kept
};

using Bfloat16 = uint16_t;

// Elements [begin, end) of a Dropout<float>, or of a Dropout<Bfloat16>. Does not throw.
void drop_floats(int64_t begin, int64_t end, void* dropout);
void drop_bfloat16s(int64_t begin, int64_t end, void* dropout);

}  // namespace fastadv
