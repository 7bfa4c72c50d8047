#include "dropout.h"

#include <cstring>

#include "rows.h"

namespace fastadv {
namespace {

// MurmurHash3's 32-bit finaliser (Appleby, public domain): every bit of x reaches every bit of the result.
inline uint32_t mixed(uint32_t x) {
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// Uniform on 32 bits. The loops below go through pieces in which the place's upper half, and so `high`, is constant.
inline uint32_t draw(uint32_t place, uint32_t low, uint32_t high) { return mixed(mixed(place ^ low) + high); }

inline float widened(Bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// To the nearest, ties to even, as torch rounds. A NaN stays one.
inline Bfloat16 rounded(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<Bfloat16>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : nearest);
}

FASTADV_ROW void drop_row(const float* x, float* out, uint32_t first, uint32_t low, uint32_t high, uint32_t threshold,
                          float scale, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const float kept = x[i] * scale;
    out[i] = draw(first + static_cast<uint32_t>(i), low, high) < threshold ? 0.0f : kept;
  }
}

FASTADV_ROW void drop_row(const Bfloat16* x, Bfloat16* out, uint32_t first, uint32_t low, uint32_t high,
                          uint32_t threshold, float scale, int64_t size) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) {
    const Bfloat16 kept = rounded(widened(x[i]) * scale);
    out[i] = draw(first + static_cast<uint32_t>(i), low, high) < threshold ? Bfloat16{0} : kept;
  }
}

template <class T>
void drop(int64_t begin, int64_t end, const Dropout<T>& p) {
  constexpr int64_t kPiece = int64_t{1} << 32;
  while (begin < end) {
    const int64_t piece_end = (begin / kPiece + 1) * kPiece;
    const int64_t stop = piece_end < end ? piece_end : end;
    const uint32_t high = p.key_high + static_cast<uint32_t>(begin >> 32);
    drop_row(p.x + begin, p.out + begin, static_cast<uint32_t>(begin), p.key_low, high, p.threshold, p.scale, stop - begin);
    begin = stop;
  }
}

}  // namespace

void drop_floats(int64_t begin, int64_t end, void* dropout) { drop(begin, end, *static_cast<Dropout<float>*>(dropout)); }

void drop_bfloat16s(int64_t begin, int64_t end, void* dropout) {
  drop(begin, end, *static_cast<Dropout<Bfloat16>*>(dropout));
}

}  // namespace fastadv
