#pragma once
/// \file PendingJudgement: a failure that is not judged yet, because nobody has said so far whether the program is a Job. Pure.
///
/// Where no restart is left, a failure ends a job that is no Job. A worker that died before its session could not say what it is, so the
/// workers of other nodes have a moment to say it.

#include <cstdint>
#include <optional>
#include <utility>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/stall.hpp"

namespace elrun::inline v0 {

/// A worker died before its session, and it is not known yet whether the job is a Job, whose rules let the others go on: a
/// worker of theirs says so when its session is open. Waited for only where the others satisfy the minimum.
constexpr Duration kind_known_within = 10s;

class PendingJudgement {
 public:
  struct Unjudged {
    NodeId node;
    WorkerFailed failed;
  };

  [[nodiscard]] bool any() const { return unjudged_.has_value(); }
  /// The failure of another worker of the node that is waited for: the two are one.
  [[nodiscard]] bool covers(const NodeId& node, const WorkerFailed& failed) const {
    return unjudged_ && failed.before_session && unjudged_->node == node;
  }
  void put_off(const NodeId& node, const WorkerFailed& failed, Instant now) {
    unjudged_ = Unjudged{node, failed};
    until_ = now + kind_known_within;
  }
  /// When it is judged as that of a plain program.
  [[nodiscard]] std::optional<Instant> until() const { return unjudged_ ? std::optional{until_} : std::nullopt; }
  /// What is to be judged now, and forgets it: the program is known to be a Job's, or nobody has said so in time.
  [[nodiscard]] std::optional<Unjudged> take_due(bool is_job, Instant now) {
    if (!unjudged_ || (!is_job && now < until_)) return {};
    return std::exchange(unjudged_, {});
  }
  void excuse(const Stall& stall) { stall.excuse(until_); }
  /// The generation is over without it.
  void forget() { unjudged_.reset(); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::optional<Unjudged> unjudged_;
  Instant until_{};
};

}  // namespace elrun::inline v0
