#pragma once
/// \file Granules: the 1024 elements that shards are cut at, and the sum of squares of each.
///
/// The sum's order is fixed: lane l of 32 adds the squares of elements l, l + 32, l + 64, ... of the granule, each with
/// one fused multiply-add; then lanes 16 apart are added, then 8, 4, 2, 1. A short last granule is the same with the
/// missing elements left out. On a device a lane is a thread of one warp, on the host an element of a vector register.

#include <cstdint>
#include <span>

#include <elrun/device.hpp>
#include <elrun/device_span.hpp>

#include "kernels/isa.hpp"

namespace elrun::inline v0 {

inline constexpr std::uint64_t granule = 1024;  ///< elements
inline constexpr std::uint64_t granule_lanes = 32;
static_assert(granule % granule_lanes == 0);

[[nodiscard]] constexpr std::uint64_t granule_count(std::uint64_t elements) { return (elements + granule - 1) / granule; }

/// What a lane does with one element, and what two lanes do with each other.
struct SquareFunctor {
  [[nodiscard]] ELRUN_HD ELRUN_INLINE float operator()(float sum, float x) const noexcept { return multiply_add(x, x, sum); }
};

/// One sum per granule: `sums` has granule_count(data.size()) elements, and `data` starts on a granule's border.
/// Anything that is not a number gives the canonical NaN, an overflow infinity.
void sums_of_squares(std::span<const float> data, std::span<float> sums, Isa isa = isa_of_this_machine());
void sums_of_squares_async(DeviceSpan<const float> data, DeviceSpan<float> sums, Stream stream);

}  // namespace elrun::inline v0
