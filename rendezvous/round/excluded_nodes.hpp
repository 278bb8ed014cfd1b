#pragma once
/// \file ExcludedNodes: nodes that are here and get no place in the world for a while, for either of two reasons. Pure.
///
///  * Their workers keep failing (`failure_records.hpp`).
///  * They and another node cannot reach each other (`exclusion.hpp`).
///
/// Each reason has its own end. What always holds: a node in the table is marked `excluded` if and only if one of the two holds for it. This
/// class alone sets that mark, in the table that it is handed. A node that is let in is a newcomer from that moment on.

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/round/exclusion.hpp"
#include "rendezvous/round/failure_records.hpp"
#include "rendezvous/round/node_table.hpp"

namespace elrun::inline v0 {

class ExcludedNodes {
 public:
  // Nodes come and go
  /// The node joins, and is not in the table yet. Returns whether it is excluded. It may take over the record of the node that was at its
  /// place, which is marked anew.
  [[nodiscard]] bool enter(const Join& join, NodeTable& nodes, Instant now);
  /// The node is about to be removed from the table.
  void leave(const NodeId& node, Instant now);
  /// A generation begins: no failure has ended it.
  void begin() { failures_.begin(); }

  // Nodes whose workers keep failing
  /// A worker of the node failed.
  const FailureRecords::History& failed(const NodeId& node, const std::string& what, bool at_start);
  /// That failure ended the generation, so `take_back` is about it.
  void blame(const NodeId& node) { failures_.blame(node); }
  /// The failure was the consequence of a lost node.
  void take_back(NodeTable& nodes);
  /// A step was decided that none had decided before: the records of all members are clean.
  void progressed(const NodeTable& nodes);
  /// Excludes the node. `held_up`: how long its last try held the others up without a decided step.
  /// `by_configuration`: as FailureRecords has it.
  void exclude(const NodeId& node, Duration held_up, NodeTable& nodes, Instant now, bool by_configuration = false);
  /// Ends the exclusions that are due. Returns the nodes that are here.
  std::vector<NodeId> retry_due(NodeTable& nodes, Instant now);
  /// The others need the node: its exclusion ends now.
  void retry(const NodeId& node, NodeTable& nodes, Instant now);
  /// Those that are here, and until when.
  [[nodiscard]] std::vector<std::pair<NodeId, Instant>> failing() const { return failures_.excluded(); }
  /// How many are here for this reason alone.
  [[nodiscard]] std::size_t only_failing(const NodeTable& nodes) const;

  // Nodes that another one cannot reach
  /// The nodes that are here, and whom each cannot reach.
  [[nodiscard]] std::map<NodeId, std::set<NodeId>> unreachable(const NodeTable& nodes) const;
  /// Excludes the node, and returns for how long.
  Duration exclude_unreachable(const NodeId& node, std::string why, std::set<NodeId> apart_from, NodeTable& nodes, Instant now);
  void let_in(const NodeId& node, NodeTable& nodes, Instant now);
  /// Their exclusion is over, or all that they could not reach are gone. They are to be let in.
  [[nodiscard]] std::vector<NodeId> let_in_due(Instant now) const { return exclusions_.due(now); }
  /// Those to let in, one after the other, until `needed` nodes wait: the ones whose exclusion ends first. None if even all of them would be
  /// too few.
  [[nodiscard]] std::vector<NodeId> let_in_needed(std::size_t needed, const NodeTable& nodes) const;

  /// The mark of the node follows from what is known. A node that is told what it waits for is told again.
  void mark(const NodeId& node, NodeTable& nodes, Instant now) const;

  // For people
  /// Of an excluded node that waits: why it does, and until when.
  [[nodiscard]] std::string why(const NodeTable::Node& node, Instant now) const;
  [[nodiscard]] std::string why_failing(const NodeId& node, Instant now) const { return failures_.why_excluded(node, now); }
  /// "b (it and a cannot reach each other)" for each that is here
  [[nodiscard]] std::vector<std::string> unreachable_texts(const NodeTable& nodes) const;

  // Deadlines
  [[nodiscard]] const std::map<FailureRecords::Record, FailureRecords::History>& histories() const { return failures_.all(); }
  [[nodiscard]] std::optional<Instant> next_let_in() const { return exclusions_.next(); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  [[nodiscard]] bool is_excluded(const Incarnation& who) const;
  void end(const FailureRecords::Record& record, NodeTable& nodes, Instant now);

  FailureRecords failures_;
  Exclusions exclusions_;
};

}  // namespace elrun::inline v0
