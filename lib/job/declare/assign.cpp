#include "lib/job/declare/assign.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace elrun::inline v0 {
namespace {

/// How many slots fewer than `most` each rank gets, so that `missing` are saved in all and the sum of popcounts is
/// least: a knapsack over deficits, filled to the brim. Ties go to small deficits, for balance.
std::vector<std::uint32_t> deficits(std::uint32_t most, std::uint32_t missing, std::uint32_t deficit_max) {
  constexpr int unreachable = std::numeric_limits<int>::min();
  std::vector<int> gain(missing + 1, unreachable);
  std::vector<std::uint32_t> last(missing + 1, 0);
  gain[0] = 0;
  for (std::uint32_t total = 1; total <= missing; ++total)
    for (std::uint32_t d = 1; d <= std::min(total, deficit_max); ++d) {
      if (gain[total - d] == unreachable) continue;
      const int g = gain[total - d] + std::popcount(most) - std::popcount(most - d);
      if (g > gain[total]) gain[total] = g, last[total] = d;
    }
  std::vector<std::uint32_t> out;
  for (std::uint32_t total = missing; total > 0; total -= last[total]) out.push_back(last[total]);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> assign_slots(std::uint32_t slots, std::uint32_t world) {
  std::vector<std::vector<std::uint32_t>> out(world);
  if (slots == 0 || world == 0) return out;
  const std::uint32_t working = std::min(slots, world);
  const std::uint32_t most = (slots + working - 1) / working;
  std::vector<std::uint32_t> size(world, 0);
  std::fill_n(size.begin(), working, most);
  const auto fewer = deficits(most, working * most - slots, most - 1);
  for (std::size_t i = 0; i < fewer.size(); ++i) size[working - fewer.size() + i] -= fewer[i];

  // Blocks in descending size begin on multiples of their size, for all before them are multiples of it.
  std::uint32_t next = 0;
  for (std::uint32_t block = std::bit_floor(most); block > 0; block /= 2)
    for (std::uint32_t rank = 0; rank < working; ++rank)
      if ((size[rank] & block) != 0)
        for (std::uint32_t i = 0; i < block; ++i) out[rank].push_back(next++);
  return out;  // ascending, because blocks were handed out from left to right
}

std::vector<std::vector<std::uint32_t>> assign_slots(std::uint32_t slots, const std::vector<bool>& computes) {
  std::vector<std::vector<std::uint32_t>> out(computes.size());
  auto assigned = assign_slots(slots, static_cast<std::uint32_t>(std::ranges::count(computes, true)));
  std::size_t next = 0;
  for (std::size_t r = 0; r < computes.size(); ++r)
    if (computes[r]) out[r] = std::move(assigned[next++]);
  return out;
}

}  // namespace elrun::inline v0
