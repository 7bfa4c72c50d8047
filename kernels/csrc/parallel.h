// Threads of torch itself, without torch's headers: its exported C function is found at import (backend.py) and stored here.
#pragma once

#include <cstdint>

namespace fastadv {

using RangeFunction = void (*)(int64_t begin, int64_t end, void* context);
using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain, RangeFunction function, void* context);

inline ParallelFor torch_parallel_for = nullptr;

// Runs function over [0, size) in pieces of at least `grain`, on one thread where torch gave no pool.
// The function must not throw: it is called through torch's C interface.
inline void parallel_for(int64_t size, int64_t grain, RangeFunction function, void* context) {
  if (torch_parallel_for == nullptr || torch_parallel_for(0, size, grain, function, context) != 0) {
    function(0, size, context);
  }
}

}  // namespace fastadv
