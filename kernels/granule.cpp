#include "kernels/granule.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {
namespace {

/// Rows of one element per lane; only the last row of the last granule is short.
ELRUN_INLINE float sum_of_squares(const float* data, std::uint64_t count) {
  float lanes[granule_lanes] = {};
  const std::uint64_t whole = count / granule_lanes * granule_lanes;
  for (std::uint64_t row = 0; row < whole; row += granule_lanes)
    for (std::uint64_t l = 0; l < granule_lanes; ++l) lanes[l] = SquareFunctor{}(lanes[l], data[row + l]);
  for (std::uint64_t l = 0; l < count - whole; ++l) lanes[l] = SquareFunctor{}(lanes[l], data[whole + l]);
  for (std::uint64_t apart = granule_lanes / 2; apart != 0; apart /= 2)
    for (std::uint64_t l = 0; l < apart; ++l) lanes[l] += lanes[l + apart];
  return canonical(lanes[0]);
}

}  // namespace

void sums_of_squares(std::span<const float> data, std::span<float> sums, Isa isa) {
  ELRUN_ASSERT(sums.size() == granule_count(data.size()));
  run_with(
      isa, ELRUN_LOOP {
        for (std::uint64_t g = 0; g < sums.size(); ++g)
          sums[g] = sum_of_squares(data.data() + g * granule, std::min<std::uint64_t>(granule, data.size() - g * granule));
      });
}

}  // namespace elrun::inline v0
