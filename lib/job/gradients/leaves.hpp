#pragma once
/// \file A slot's gradient as bf16, for a plan whose leaves are: rounded where it lies, as floats or packed.

#include <cstdint>
#include <span>

#include <elrun/tensor.hpp>

#include "kernels/granule.hpp"

namespace elrun::inline v0 {

/// A chunk of each operand of a fold stays in the second-level cache; no bit depends on it.
constexpr std::uint64_t fold_chunk = 16 * granule;

/// Each element becomes the bf16 that is nearest to it, and stays a float.
void round_to_bf16(std::span<float> leaf);
/// The same, and packed: it takes the first half of the memory. What was in the other half is lost.
void pack_to_bf16(std::span<float> leaf);
/// Elements [begin, begin + count) of what was packed at `leaf`.
[[nodiscard]] std::span<const bf16> packed(const float* leaf, std::uint64_t begin, std::uint64_t count);

}  // namespace elrun::inline v0
