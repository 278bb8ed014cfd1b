#pragma once
/// \file One inner node of the canonical tree: left = left + right in fp32. The sum of two numbers does not depend on
/// their order, bit for bit, once every NaN is the same NaN; and (+0) + (-0) is +0 both ways.

#include <span>

#include <elrun/device.hpp>
#include <elrun/tensor.hpp>

#include "kernels/convert.hpp"

namespace elrun::inline v0 {

struct FoldFunctor {
  [[nodiscard]] ELRUN_HD ELRUN_INLINE float operator()(float left, float right) const noexcept { return canonical(left + right); }
  [[nodiscard]] ELRUN_HD ELRUN_INLINE float operator()(float left, bf16 right) const noexcept { return (*this)(left, to_float(right)); }
};

/// Both spans have the same size and do not overlap.
void add_into(std::span<float> left, std::span<const float> right, Isa isa = isa_of_this_machine());
void add_into(std::span<float> left, std::span<const bf16> right, Isa isa = isa_of_this_machine());

void add_into_async(DeviceSpan<float> left, DeviceSpan<const float> right, Stream stream);
void add_into_async(DeviceSpan<float> left, DeviceSpan<const bf16> right, Stream stream);

}  // namespace elrun::inline v0
