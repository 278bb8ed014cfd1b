#pragma once
/// \file UnreachablePairs: members of the running generation that say that they cannot reach each other, though each of them reaches this
/// coordinator; and when that is to be believed. Pure.
///
/// A node that is silent here too will soon count as lost, and that is the better explanation. So a report is believed only when both nodes
/// of each pair were heard of after the first one.

#include <cstddef>
#include <optional>
#include <set>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/exclusion.hpp"
#include "rendezvous/round/node_table.hpp"

namespace elrun::inline v0 {

/// From the first word of two members that cannot reach each other to the end of their generation: others may say so as well, and
/// both are to be heard of here.
constexpr Duration apart_gather = 2s;
constexpr std::size_t apart_max = 4096;  ///< Such pairs that are told apart, in one generation.

class UnreachablePairs {
 public:
  struct Report {
    Instant since;  ///< The first word of it
    std::set<ApartNodes> pairs;
    PeerUnreachable first;
    NodeId by;  ///< Who said that
  };

  /// A worker of `node` cannot reach one of `peer`. True for the first such report of the generation.
  bool note(const NodeId& node, const NodeId& peer, const PeerUnreachable& said, Instant now);
  [[nodiscard]] bool any() const { return report_.has_value(); }
  /// When the reports are judged next.
  [[nodiscard]] std::optional<Instant> judged_at() const { return report_ ? std::optional{look_at_} : std::nullopt; }
  /// True if the reports are to be believed now. If it is time for that, but a node was not heard of since, it is looked at `again` later.
  [[nodiscard]] bool are_certain(const NodeTable& nodes, Duration again, Instant now);
  /// All that was reported, and forgets it. Only when there is something.
  [[nodiscard]] Report take();
  void forget() { report_.reset(); }
  /// The node is gone: whether it can be reached is no question any more.
  void remove(const NodeId& node);

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::optional<Report> report_;
  Instant look_at_{};
};

}  // namespace elrun::inline v0
