#pragma once
/// \file StartWatch: members of the running generation whose workers have not joined the world yet, and when the others are told. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/stall.hpp"

namespace elrun::inline v0 {

/// While members wait for workers of others that have not joined the world, the log and all members are told this often.
constexpr Duration starting_told_every = 60s;

class StartWatch {
 public:
  struct Starting {
    std::uint32_t rank = 0;  ///< Of the first of the node's workers that are starting
    std::uint32_t count = 0;
    bool opened = false;   ///< The first one's session
    bool watched = false;  ///< Its own agent has a limit for it (`--hang_timeout`).
    Instant since;
    [[nodiscard]] bool is_over(Instant at, Duration limit) const { return !watched && at >= since + limit; }
  };

  /// A member says whose start it waits for, in the generation that began then. Others may say so as well, so they are told `delay` later.
  /// True when this was the last one, and it had been told that somebody is waited for.
  [[nodiscard]] bool note(const NodeId& node, const WorkersStarting& said, Instant began, Duration delay, Instant now);
  /// The node is lost.
  void remove(const NodeId& node) { starting_.erase(node); }
  void excuse(const Stall& stall) {
    for (auto& [node, starting] : starting_) starting.since += stall.length;
  }
  /// The generation is over.
  void end() { starting_.clear(); }
  /// Another one begins.
  void begin() { starting_.clear(), tell_at_.reset(), reported_ = false; }

  [[nodiscard]] const std::map<NodeId, Starting>& all() const { return starting_; }
  /// Others of the members wait for a start: neither all of them are starting, nor are the rest `done`.
  [[nodiscard]] bool others_wait(std::size_t members, std::size_t done) const {
    return !starting_.empty() && starting_.size() + done < members;
  }
  [[nodiscard]] std::set<NodeId> nodes() const;
  /// Members whose workers are over the limit, and those that will be `soon`: they are given up together. Empty while none is over it.
  [[nodiscard]] std::vector<NodeId> late(Duration limit, Duration soon, Instant now) const;
  /// When the first start is over the limit, of those that it applies to.
  [[nodiscard]] std::optional<Instant> first_limit(Duration limit) const;
  /// "rank 4 of node c (started 10 s ago, has not opened its session)" for each.
  [[nodiscard]] std::vector<std::string> described(Instant now) const;

  /// When the others are told next.
  [[nodiscard]] std::optional<Instant> tell_at() const { return tell_at_; }
  /// True if it is time for that; then the next time is `starting_told_every` later.
  [[nodiscard]] bool tell(Instant now) {
    if (!tell_at_ || now < *tell_at_) return false;
    tell_at_ = now + starting_told_every, reported_ = true;
    return true;
  }
  /// What they are told: for whom `waiting` members wait, and what happens if that lasts. `can_spare`: the others can go on without those that
  /// are starting; `has_trained`: the job has decided a step.
  [[nodiscard]] std::string text(const Generation& generation, std::size_t waiting, bool can_spare, bool has_trained, Duration limit,
                                 Instant now) const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::map<NodeId, Starting> starting_;
  std::optional<Instant> tell_at_;
  bool reported_ = false;
};

}  // namespace elrun::inline v0
