#pragma once
/// \file PendingRequests: the requests of this rank that its peers have not served yet, and which of them go into the next round. Core:
/// a value without locks; CommThread decides when rounds happen, and on which thread.
///
/// A rank that has ended its phase may compute in the next one while others are still in the old one. Until they have ended it too, its
/// rounds say that it needs nothing more there. They may still ask for weights, which are the same in all phases of a step. Leaves
/// belong to a phase: they are handed off in that phase only.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "lib/job/gather/rounds.hpp"

namespace elrun::inline v0 {

class PendingRequests {
 public:
  PendingRequests() = default;
  explicit PendingRequests(std::size_t units) : here_(units) {}

  /// From now on this rank is in that phase. The others hear it at once, or where it has ended the one before, once they have too.
  /// In the phase at hand already: nothing.
  void begin(const Phase& phase);
  /// Whether what is said now is said of this phase.
  [[nodiscard]] bool at(const Phase& phase) const { return at_ == phase; }
  /// This rank needs nothing more in the phase in which it is.
  void end();
  /// Whether all ranks have ended all phases that this one has begun.
  [[nodiscard]] bool over() const { return !at_.has_value(); }

  /// Weights that the job's thread waits for. A prefetch of another unit that was not sent yet is dropped.
  void want(std::uint32_t unit);
  /// Weights that may be needed next. They are requested when nobody waits for others.
  void prefetch(std::uint32_t unit);
  /// Whether weights have come, and were not forgotten.
  [[nodiscard]] bool here(std::uint32_t unit) const { return here_[unit]; }
  /// They are needed no more. Not while a round brings them.
  void forget(std::uint32_t unit);

  void hand_off(std::uint32_t unit) { leaves_.push_back(unit); }
  /// Leaves that the others have not taken yet.
  [[nodiscard]] std::size_t leaves() const { return leaves_.size(); }

  /// Whether there is something to say in a round.
  [[nodiscard]] bool has_request() const { return at_ && (ended_ || wanted_ || predicted_ || !leaves_.empty()); }
  /// What this rank says in the round that begins now. Requires has_request(); one round at a time.
  [[nodiscard]] Need say();
  /// The round is over: what all said, as far as it was done, and by whom this was.
  void heard(std::span<const Need> by_rank, std::uint32_t me);
  /// The round failed.
  void lost() { sent_.reset(); }

 private:
  /// Or is here already.
  [[nodiscard]] bool comes(std::uint32_t unit) const { return here_[unit] || (sent_ && sent_->gather == unit); }
  std::optional<Phase> at_, next_;
  bool ended_ = false;  // of the phase at hand
  std::optional<std::uint32_t> wanted_, predicted_;
  std::deque<std::uint32_t> leaves_;
  std::vector<bool> here_;  // by unit
  std::optional<Need> sent_;
};

}  // namespace elrun::inline v0
