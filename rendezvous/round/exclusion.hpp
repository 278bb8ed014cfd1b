#pragma once
/// \file Exclusions: the list of nodes that are excluded from the world for a while, because worlds with them failed. Pure: it sees only
/// times and names. Round decides who is excluded, and whether the other nodes satisfy the minimum.

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

/// The first exclusion of a node lasts 30 s. Each further one lasts twice as long as the one before, up to 30 min.
constexpr Duration exclusion_least = 30s, exclusion_most = 1800s;
/// A node that was let in and behaved for this long starts again with the shortest exclusion.
constexpr Duration exclusion_forgotten = 1800s;
constexpr std::size_t exclusions_max =
    4096;  ///< Entries beyond this are kept only for nodes that are out now, not for nodes that were out before.

struct Exclusion {
  std::uint64_t incarnation = 0;  ///< The exclusion is for this process of the node. A new process under the same name may join at once.
  Instant until{};
  std::uint32_t times = 0;  ///< Consecutive exclusions, including this one.
  bool over = false;
  std::string why;  ///< For people: "it and node b cannot reach each other"
  std::set<NodeId>
      apart_from{};  ///< Nodes that it cannot reach. The exclusion ends when all of them are gone. Empty: it concerns this node alone.
};

class Exclusions {
 public:
  /// Excludes the node, and returns for how long. If it is out already, the later of the two ends counts.
  Duration exclude(const NodeId& node, std::uint64_t incarnation, std::string why, std::set<NodeId> apart_from, Instant now);
  /// The exclusion of this process of the node; nullptr if it is not out now.
  [[nodiscard]] const Exclusion* of(const NodeId& node, std::uint64_t incarnation) const;
  /// Ends the exclusion. The number of exclusions so far is kept.
  void let_in(const NodeId& node, Instant now);
  /// Nodes whose exclusion is due to end: its time is over, or all nodes that it could not reach are gone.
  [[nodiscard]] std::vector<NodeId> due(Instant now) const;
  /// When the next exclusion ends.
  [[nodiscard]] std::optional<Instant> next() const;
  /// `node` has left the job. A node that was out because of it alone is due at once.
  void gone(const NodeId& node, Instant now);
  [[nodiscard]] bool any() const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::map<NodeId, Exclusion> all_;
};

/// Two nodes that cannot reach each other. The smaller name comes first.
using ApartNodes = std::pair<NodeId, NodeId>;

/// Which nodes to exclude so that all others can reach each other. The node with the most unreachable peers is chosen first. Among
/// equals it is the one that comes later in `order` (members by rank). `host`, the coordinator's own node, is chosen last.
[[nodiscard]] std::vector<NodeId> whom_to_exclude(std::set<ApartNodes> apart, const std::vector<NodeId>& order,
                                                  const std::optional<NodeId>& host);

/// What follows when members report pairs that cannot reach each other.
struct Separation {
  std::set<ApartNodes> pairs;    ///< The reported ones, and earlier ones of which one node is excluded: they are judged again.
  std::vector<NodeId> out;       ///< To be excluded now
  std::set<NodeId> coming_back;  ///< Excluded so far, and not any more: their partners turned out to be cut from more nodes.
  /// Whom the node cannot reach.
  [[nodiscard]] std::set<NodeId> partners_of(const NodeId& node) const;
};
/// `excluded`: nodes that are out for such a pair, and whom each cannot reach. `order` and `host` as above.
[[nodiscard]] Separation separate(std::set<ApartNodes> reported, const std::map<NodeId, std::set<NodeId>>& excluded,
                                  const std::vector<NodeId>& order, const std::optional<NodeId>& host);

}  // namespace elrun::inline v0
