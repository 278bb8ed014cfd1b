#include "lib/comm/schedule.hpp"

#include <algorithm>

namespace elrun::inline v0 {

Range part_of(Rank rank, WorldSize world, std::uint64_t count) {
  const std::uint64_t least = count / world.value(), more = count % world.value();  // the first `more` ranks have one more
  const auto begin = [&](std::uint64_t r) { return r * least + std::min(r, more); };
  return {begin(rank.value()), begin(rank.value() + std::uint64_t{1})};
}

std::uint64_t ReduceSchedule::rounds() const {
  const std::uint64_t largest = part_of(Rank{0}, world_, count_).size();
  return (largest + block_ - 1) / block_;
}

Range ReduceSchedule::folded(Rank rank, std::uint64_t round) const {
  const Range part = part_of(rank, world_, count_);
  const auto at = [&](std::uint64_t k) { return part.begin + std::min(part.size(), k * block_); };
  return {at(round), at(round + 1)};
}

}  // namespace elrun::inline v0
