#pragma once
/// \file float and bf16, in integer arithmetic alone: the same bits on host and device, whatever the hardware offers.

#include <bit>
#include <cstdint>
#include <span>

#include <elrun/device.hpp>
#include <elrun/device_span.hpp>
#include <elrun/hd.hpp>
#include <elrun/tensor.hpp>

#include "kernels/arithmetic.hpp"
#include "kernels/isa.hpp"

namespace elrun::inline v0 {

/// Rounds to nearest, ties to even; overflow gives infinity, any NaN the canonical one.
[[nodiscard]] ELRUN_HD ELRUN_INLINE constexpr bf16 to_bf16(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return bf16{static_cast<std::uint16_t>(nan ? canonical_nan_bits >> 16 : rounded)};
}

[[nodiscard]] ELRUN_HD ELRUN_INLINE constexpr float to_float(bf16 x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

/// Both spans have the same size and do not overlap.
void to_bf16(std::span<const float> in, std::span<bf16> out, Isa isa = isa_of_this_machine());
void to_float(std::span<const bf16> in, std::span<float> out, Isa isa = isa_of_this_machine());

// The `_async` twins of host functions exist where the build has CUDA (ELRUN_CUDA). They return at once; the work is
// done in the stream's order, on the stream's device, which is the current one. They throw Error when a launch fails.
void to_bf16_async(DeviceSpan<const float> in, DeviceSpan<bf16> out, Stream stream);
void to_float_async(DeviceSpan<const bf16> in, DeviceSpan<float> out, Stream stream);

}  // namespace elrun::inline v0
