#pragma once
/// \file Announcements: what the round has decided, in its order, and what of it may be performed now. Pure.
///
/// Where coordinators are elected, the beginning of a generation and the first verdict have to be on record before anybody is told of them.
/// So they, and all that follows them, wait until the ledger has them. Each is asked for once.

#include <deque>
#include <optional>

#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {

class Announcements {
 public:
  /// Without a ledger nothing waits.
  explicit Announcements(bool has_ledger) : has_ledger_{has_ledger} {}

  /// Not for `WakeAt` and `AskHost`: they tell nobody anything, and wait for nothing.
  void add(RoundAction action) { held_.push_back(std::move(action)); }
  /// The next action to perform. Nothing: there is none, or it waits for the ledger.
  [[nodiscard]] std::optional<RoundAction> next();
  [[nodiscard]] bool empty() const { return held_.empty(); }

  /// What the ledger records: the generation that begins. None: the verdict.
  struct Entry {
    std::optional<Generation> generation;
  };
  /// The entry that the next action waits for, if the ledger was not asked for it yet. `cleared` is to follow.
  [[nodiscard]] std::optional<Entry> entry();
  /// The ledger has it.
  void cleared() { asked_ = false, cleared_ = true; }

 private:
  [[nodiscard]] bool must_last(const RoundAction& action) const;

  bool has_ledger_;
  std::deque<RoundAction> held_;  // decided, not yet performed
  bool asked_ = false;            // the ledger, about the first of them
  bool cleared_ = false;          // and it has agreed
  bool verdict_said_ = false;
};

}  // namespace elrun::inline v0
