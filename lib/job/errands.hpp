#pragma once
/// \file Errands: what one rank still needs of the others, and what it says of it in which round. Which thread says it, and when,
/// is the Courier's.
///
/// A rank that has ended its phase may be computing in the next one while others are still in the old: until they have ended it
/// too, it goes on saying that it needs nothing more there, and asks for weights on the way, which are the same in all phases
/// of a step. Leaves belong to a phase: they are handed off in it alone.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "lib/job/rounds.hpp"

namespace elrun::inline v0 {

class Errands {
 public:
  Errands() = default;
  explicit Errands(std::size_t units) : here_(units) {}

  /// From now on this rank is in that phase. The others hear it at once, or where it has ended the one before, once they have too.
  /// In the phase at hand already: nothing.
  void begin(const Phase& phase);
  /// Whether what is said now is said of this phase.
  [[nodiscard]] bool at(const Phase& phase) const { return at_ == phase; }
  /// This rank needs nothing more in the phase in which it is.
  void end();
  /// Whether all ranks have ended all phases that this one has begun.
  [[nodiscard]] bool over() const { return !at_.has_value(); }

  /// Weights that somebody waits for. What was only foreseen and is another unit is asked for no more.
  void want(std::uint32_t unit);
  /// Weights that may be needed next: asked for when nobody waits for others.
  void foresee(std::uint32_t unit);
  /// Whether weights have come, and were not forgotten.
  [[nodiscard]] bool here(std::uint32_t unit) const { return here_[unit]; }
  /// They are needed no more. Not while a round brings them.
  void forget(std::uint32_t unit);

  void hand_off(std::uint32_t unit) { leaves_.push_back(unit); }
  /// Leaves that the others have not taken yet.
  [[nodiscard]] std::size_t leaves() const { return leaves_.size(); }

  /// Whether this rank has a reason to come to a round.
  [[nodiscard]] bool has_word() const { return at_ && (ended_ || wanted_ || foreseen_ || !leaves_.empty()); }
  /// What it says in the round that begins now. Only with a reason, and one round at a time.
  [[nodiscard]] Need say();
  /// The round is over: what all said, as far as it was done, and by whom this was.
  void heard(std::span<const Need> by_rank, std::uint32_t me);
  /// The round failed.
  void lost() { said_.reset(); }

 private:
  /// Or is here already.
  [[nodiscard]] bool comes(std::uint32_t unit) const { return here_[unit] || (said_ && said_->gather == unit); }
  std::optional<Phase> at_, next_;
  bool ended_ = false;  // of the phase at hand
  std::optional<std::uint32_t> wanted_, foreseen_;
  std::deque<std::uint32_t> leaves_;
  std::vector<bool> here_;  // by unit
  std::optional<Need> said_;
};

}  // namespace elrun::inline v0
