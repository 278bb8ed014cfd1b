#pragma once
/// \file Shell: the fence that this start has claimed. A save is promised to the job only while it is the highest one.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <elrun/result.hpp>

#include "checkpoint/commit/fence.hpp"
#include "checkpoint/commit/messages.hpp"
#include "checkpoint/commit/root.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {

class OwnFence {
 public:
  /// Claims the next number. `above`: a fence that is known and cannot be found. Its number is not used again, so a checkpoint's name
  /// never means two of them.
  /// Fails with `refused` when another one was claimed since `go_without`, or by another job since the last claim: that one saves there.
  Result<void> claim(const CheckpointRoot& root, FenceNumber above);
  /// The root cannot be written: this start claims none.
  Result<void> go_without(const CheckpointRoot& root);
  /// Of those that this fence is to inherit: one whose owner died between its COMMIT and the sync of the directory is there, but may be gone after a
  /// power loss, and would be missed. Each that was not acknowledged is synced. One that cannot be is not inherited, for nobody was promised it;
  /// `resumed_from` must be.
  Result<void> make_durable(const CheckpointRoot& root, std::vector<CheckpointId>& inherits,
                            std::optional<CheckpointId> resumed_from) const;
  /// Writes down, once, what the claimed fence goes on from.
  Result<void> publish(const CheckpointRoot& root, const std::vector<CheckpointId>& inherits, std::optional<CheckpointId> resumed_from,
                       std::vector<GivenUp> gives_up);
  /// The fences on the storage, for `may_save` to judge. Fails where none is claimed.
  [[nodiscard]] Result<FencesSeen> look(const CheckpointRoot& root) const;
  /// Both in one: whether this is the newest fence there.
  [[nodiscard]] Result<void> check_newest(const CheckpointRoot& root) const;
  /// Writes down that a committed save was promised. The name alone says it, and COMMIT is durable: so a torn file is as good as a whole
  /// one, and a lost one was never promised.
  Result<void> acknowledge(const CheckpointRoot& root, const SaveTicket& ticket);
  /// No save under it any more.
  void release() { number_ = 0; }
  /// Another process of this job has claimed it.
  void take_over(FenceNumber number, std::vector<GivenUp> gives_up) {
    number_ = last_ = number;
    given_up_ = std::move(gives_up);
  }

  [[nodiscard]] FenceNumber number() const { return number_; }
  /// Any fence was, ever.
  [[nodiscard]] bool was_claimed() const { return last_ > 0; }
  [[nodiscard]] const std::vector<GivenUp>& given_up() const { return given_up_; }
  [[nodiscard]] const std::string& acknowledged() const { return acknowledged_; }

 private:
  [[nodiscard]] Result<void> check_not_overtaken(const CheckpointRoot& root) const;

  FenceNumber number_ = 0;             // 0: none is claimed
  FenceNumber last_ = 0;               // the newest that ever was
  std::optional<FenceNumber> seen_{};  // the highest one when this start went without
  std::vector<GivenUp> given_up_{};
  std::string acknowledged_{};  // the newest acknowledgement, encoded
};

/// The highest fence found; 0 when there is none.
[[nodiscard]] Result<FenceNumber> highest_fence(Tier& tier);

/// The largest number of a generation in the newest claims; 0 when there is none. The floor of a coordinator
/// that no earlier process of the job can tell how far it was.
[[nodiscard]] Result<std::uint64_t> newest_generation(Tier& tier);

}  // namespace elrun::inline v0
