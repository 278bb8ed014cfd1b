#pragma once
/// \file Reduction: the fold of all ranks' elements, straight out of the peers' memory. All ranks of the world are on this host.
///
/// It goes by the rounds of ReduceSchedule. In a round each rank posts the blocks of the next round for others, folds its own of this round,
/// posts the result, and reads the others' results of the round before. Each step waits only for steps that stand earlier in this
/// order, so waiting for one peer after the other cannot close a circle, as long as the slots suffice for what may be under way:
/// the blocks of two rounds and the results of two.
///
/// Where every rank's elements lie in shared buffers, there are no rounds: each rank folds its whole part in place, then reads the others' results.

#include <cstddef>
#include <optional>
#include <vector>

#include <elrun/process_group.hpp>

#include "lib/comm/schedule.hpp"
#include "lib/comm/shm/lane_set.hpp"

namespace elrun::inline v0 {

/// Kept between calls, so that a call allocates nothing.
class Reduction {
 public:
  explicit Reduction(LaneSet& lanes) : lanes_{lanes}, inputs_(lanes.me().world.value()), results_(lanes.me().world.value()) {}
  struct Call {
    const std::byte* in;
    std::byte* out;
    std::size_t count;
    DType type;
    ReduceOp op;
    bool gather;
  };
  /// As Lanes::reduce, without its end.
  Result<void> run(const Call& call, const CallLimit& limit);

 private:
  using SendPiece = std::span<const std::byte>;
  using ReceivePiece = std::span<std::byte>;
  [[nodiscard]] std::size_t width() const { return size_of(call_.type); }
  [[nodiscard]] std::size_t total() const { return call_.count * width(); }
  /// This rank's part of the elements.
  [[nodiscard]] Range part() const { return part_of(lanes_.me().rank, lanes_.me().world, call_.count); }
  Result<void> contribute(const ReduceSchedule& schedule, std::uint64_t round, const CallLimit& limit);
  Result<void> fold_round(const ReduceSchedule& schedule, std::uint64_t round, const CallLimit& limit);
  Result<void> collect(const ReduceSchedule& schedule, std::uint64_t round, const CallLimit& limit);
  Result<bool> all_share(const CallLimit& limit);
  Result<void> run_in_place(const CallLimit& limit);
  Result<void> fold_in_place(const CallLimit& limit);
  Result<void> read_results(const CallLimit& limit);

  LaneSet& lanes_;
  Call call_{};
  std::optional<BufferPlace> shared_in_, shared_out_;  // where peers find the elements and the results
  std::vector<const std::byte*> inputs_;
  std::vector<ReceivePiece> results_;  // by rank, where its results go
};

}  // namespace elrun::inline v0
