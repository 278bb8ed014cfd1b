#pragma once
/// \file Who sends which elements when, in a reduction over all ranks. Pure.
///
/// The elements are divided among the ranks. In round k every rank receives its k-th block of elements from all others
/// and folds it, in rank order; in the same round the folded blocks of round k-1 go to everybody. Each element is folded
/// by exactly one rank, always in the order of ranks, so all ranks end with the same bits; and memory for the blocks of
/// others is bounded, whatever the size of the call.

#include <cstdint>

#include <elrun/ids.hpp>

namespace elrun::inline v0 {

/// Elements [begin, end).
struct Range {
  std::uint64_t begin = 0, end = 0;
  [[nodiscard]] std::uint64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// The part of a rank when `count` elements are divided evenly: parts follow each other and differ by one at most.
[[nodiscard]] Range part_of(Rank rank, WorldSize world, std::uint64_t count);

class ReduceSchedule {
 public:
  /// Blocks have `block` elements at most.
  ReduceSchedule(WorldSize world, std::uint64_t count, std::uint64_t block) : world_{world}, count_{count}, block_{block} {}
  /// Rounds in which something is folded; one more follows, in which the last blocks are only handed out.
  [[nodiscard]] std::uint64_t rounds() const;
  /// What `rank` folds in `round`; empty before the first and after its last.
  [[nodiscard]] Range folded(Rank rank, std::uint64_t round) const;

 private:
  WorldSize world_;
  std::uint64_t count_, block_;
};

}  // namespace elrun::inline v0
