#pragma once
/// \file Exclusions: nodes that are kept out of the next worlds for a while, because worlds with them failed. Pure: time and
/// names in. Round asks it; what a node did, and whether the others are enough without it, Round knows.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

/// A node is kept out for 30 s, doubled each time that it had to be again, for 30 min at most.
constexpr Duration exclusion_least = 30s, exclusion_most = 1800s;
/// Who was let in again and gave no reason for so long begins anew with the shortest.
constexpr Duration exclusion_forgotten = 1800s;
constexpr std::size_t exclusions_max = 4096;  ///< Nodes that are remembered, those that are out now included

struct Exclusion {
  std::uint64_t incarnation = 0;  ///< Another process under the node's name is tried at once.
  Instant until{};
  std::uint32_t times = 0;        ///< In a row, this one included
  bool over = false;
  std::string why;                ///< For people: "it and node b cannot reach each other"
  std::set<NodeId> apart_from{};  ///< Whom it must not be in a world with. When all of them are gone, it is over. Empty: it is about the node alone.
};

class Exclusions {
 public:
  /// How long it is out for. Of one that is out already the later end counts.
  Duration exclude(const NodeId& node, std::uint64_t incarnation, std::string why, std::set<NodeId> apart_from, Instant now);
  /// Of a node that is out now.
  [[nodiscard]] const Exclusion* of(const NodeId& node, std::uint64_t incarnation) const;
  /// It may be in the next world; how often it was out is remembered.
  void let_in(const NodeId& node, Instant now);
  /// Those whose time is over, or from whom all are gone that they were to be apart from.
  [[nodiscard]] std::vector<NodeId> due(Instant now) const;
  /// The end of the first of them.
  [[nodiscard]] std::optional<Instant> next() const;
  /// A node is no more. Whoever was out because of it alone is due.
  void gone(const NodeId& node, Instant now);
  [[nodiscard]] bool any() const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::map<NodeId, Exclusion> all_;
};

/// Two nodes that cannot reach each other, the smaller name first.
using ApartNodes = std::pair<NodeId, NodeId>;

/// Whom to keep out so that of the others all can reach each other: whoever is apart from most first; of several the later
/// one in `order` (the members by rank), but `host` last, the node in whose process the coordinator lives.
[[nodiscard]] std::vector<NodeId> whom_to_exclude(std::set<ApartNodes> apart, const std::vector<NodeId>& order, const std::optional<NodeId>& host);

}  // namespace elrun::inline v0
