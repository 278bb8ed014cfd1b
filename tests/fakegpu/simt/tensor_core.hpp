#pragma once
/// \file What samples/nn/tensor_core.cuh has for a device's tensor cores, for twins: lanes hand their parts around by shuffles, and a copy that goes on beside the
/// code is made when it begins or when it is waited for. Included by simt.hpp.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace fakegpu {

inline float float_of_bf16(unsigned bits) { return std::bit_cast<float>(bits << 16); }

inline unsigned pack_bf16(float low, float high) {
  const auto rounded = [](float x) {
    const auto bits = std::bit_cast<unsigned>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;  // a NaN stays one
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  };
  return rounded(low) | rounded(high) << 16;
}

inline float exp2_fast(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}

inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned row = lane() / 4, column = lane() % 4 * 2, all = 0xffffffffu;
  float left[2][16], right[16][2];
  // Lane 4 r + p has of a the columns 2 p, 2 p + 1, and 8 more, of rows r and r + 8; of b it has as many rows of column r.
  for (unsigned p = 0; p < 4; ++p)
    for (unsigned half = 0; half < 2; ++half) {
      const auto pairs = shuffle(all, std::uint64_t{a[2 * half]} | std::uint64_t{a[2 * half + 1]} << 32, 4 * row + p);
      for (unsigned r = 0; r < 2; ++r)
        for (unsigned e = 0; e < 2; ++e) left[r][8 * half + 2 * p + e] = float_of_bf16(pairs >> (32 * r + 16 * e) & 0xffffu);
    }
  for (unsigned c = 0; c < 2; ++c)
    for (unsigned p = 0; p < 4; ++p) {
      const auto pairs = shuffle(all, std::uint64_t{b0} | std::uint64_t{b1} << 32, 4 * (column + c) + p);
      for (unsigned half = 0; half < 2; ++half)
        for (unsigned e = 0; e < 2; ++e) right[8 * half + 2 * p + e][c] = float_of_bf16(pairs >> (32 * half + 16 * e) & 0xffffu);
    }
  for (unsigned r = 0; r < 2; ++r)
    for (unsigned c = 0; c < 2; ++c) {
      float added = 0;
      for (unsigned k = 0; k < 16; ++k) added += left[r][k] * right[k][c];
      sum[2 * r + c] += added;
    }
}

inline void make_copy(void* to, const void* from) { *static_cast<uint4*>(to) = *static_cast<const uint4*>(from); }
inline void copy_async(void* to, const void* from) {
  if (is_made_at_once({to, from})) make_copy(to, from);
}
inline void end_of_copies() { end_group_of_copies(); }
template <unsigned left>
inline void wait_for_copies() {
  for (AsyncCopy copy = next_copy(left); copy.to != nullptr; copy = next_copy(left)) make_copy(copy.to, copy.from);
}

inline void load_matrices_of(unsigned (&to)[4], const void* row, bool transposed) {
  std::uint64_t halves[2];  // of the row that this lane was told
  const auto* const words = static_cast<const std::uint64_t*>(row);
  halves[0] = words[0], halves[1] = words[1];
  const unsigned all = 0xffffffffu, line = lane() / 4, pair = lane() % 4 * 2;
  for (unsigned m = 0; m < 4; ++m) {
    const auto element = [&](unsigned r, unsigned c) {
      // Every lane asks for its own row and half, and each gives both.
      const std::uint64_t first = shuffle(all, halves[0], 8 * m + r), second = shuffle(all, halves[1], 8 * m + r);
      return static_cast<unsigned>((c < 4 ? first : second) >> (16 * (c % 4)) & 0xffffu);
    };
    const unsigned low = transposed ? element(pair, line) : element(line, pair);
    const unsigned high = transposed ? element(pair + 1, line) : element(line, pair + 1);
    to[m] = low | high << 16;
  }
}
inline void load_matrices(unsigned (&to)[4], const void* row) { load_matrices_of(to, row, false); }
inline void load_matrices_transposed(unsigned (&to)[4], const void* row) { load_matrices_of(to, row, true); }

}  // namespace fakegpu
