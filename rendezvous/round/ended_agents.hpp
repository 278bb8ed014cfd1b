#pragma once
/// \file EndedAgents: agents whose process has ended, as their guards say, or their hosts by refusing connections to the agent's port. Pure.
///
/// A process that has ended resumes nothing, so its node gets no grace: it is lost when its stream has ended too. What the agent said before its end
/// is read first in this way. A stream that stays open (the network lost its end) is waited for as long as a broken one is.
///
/// What always holds: who has ended, as its guard says, is never a node again. A Join that it sent before, and that is read only later, is no word of a
/// node that lives. What a host says may be another one's word (a firewall's, a translator's), so who comes back after it is a newcomer, as after the
/// grace.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0 {

constexpr std::size_t ended_agents_max = 1024;  ///< That are remembered, in all.

class EndedAgents {
 public:
  /// Who says so.
  enum class Witness : std::uint8_t { guard, host };
  struct Ended {
    Instant until;
    Witness witness;
  };
  /// The process that has the name of a node that is here has ended. `until`: its stream is waited for. The first witness counts.
  void end(const Incarnation& who, Instant until, Witness witness = Witness::guard) {
    if (witness == Witness::guard) {
      if (ended_.size() >= ended_agents_max) ended_.erase(ended_.begin());
      ended_.insert(who);
    }
    waited_for_.try_emplace(who.node, Ended{until, witness});
  }
  [[nodiscard]] bool has_ended(const Incarnation& who) const { return ended_.contains(who); }
  /// The node is not here any more.
  void remove(const NodeId& node) { waited_for_.erase(node); }

  /// Nodes that are here and are lost with the end of their stream, each at the latest at its `until`.
  [[nodiscard]] const std::map<NodeId, Ended>& waited_for() const { return waited_for_; }
  [[nodiscard]] std::optional<Instant> next_due() const {
    std::optional<Instant> next;
    for (const auto& [node, how] : waited_for_)
      if (!next || how.until < *next) next = how.until;
    return next;
  }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::set<Incarnation> ended_;
  std::map<NodeId, Ended> waited_for_;
};

}  // namespace elrun::inline v0
