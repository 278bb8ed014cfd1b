#pragma once
/// \file What final leaves look like in bf16, for a plan whose leaves are; and how much of a fold is done at a time. Memory rounds and packs them.

#include <cstdint>
#include <span>

#include <elrun/device.hpp>
#include <elrun/tensor.hpp>

#include "kernels/granule.hpp"

namespace elrun::inline v0 {

/// Elements of each operand that a fold takes at a time; no bit depends on it. On the host a chunk of each stays in the second-level cache. On a
/// device a launch should have enough to do, and what a chunk needs beside the operands should not be large.
[[nodiscard]] constexpr std::uint64_t fold_chunk(DeviceKind kind) { return (kind == DeviceKind::host ? 16 : 4096) * granule; }

/// Elements [begin, begin + count) of what was packed at `leaf` (Memory::pack_to_bf16).
[[nodiscard]] inline std::span<const bf16> packed(const float* leaf, std::uint64_t begin, std::uint64_t count) {
  return {reinterpret_cast<const bf16*>(leaf) + begin, count};
}

}  // namespace elrun::inline v0
