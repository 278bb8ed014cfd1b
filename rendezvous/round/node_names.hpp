#pragma once
/// \file NodeNames: which process a node's name belongs to, where several say that they are this node. Pure.
///
/// A name proves nothing. What always holds:
///  * While a node has a stream, its name is its own. Another process that joins under it is a claimant: it waits until that stream is silent
///    or gone, and is refused if the node lives.
///  * A process that was replaced by another one of its name is refused from then on.
///  * A process opens a stream only after its predecessor has ended, and only after it gave up its own last one. So a Join on an earlier
///    stream than the newest one of the same process was sent before, and is only read later; one on an earlier stream than the first one of
///    the process that has the name comes from a predecessor. A process that came between the two streams lives beside that one, and may be
///    its successor yet.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/node_table.hpp"

namespace elrun::inline v0 {

constexpr std::size_t former_max = 1024;  ///< Lost incarnations that are remembered, in all.
constexpr std::size_t replaced_max = 64;  ///< Replaced incarnations that are remembered, per node.
constexpr std::size_t claimants_max = 4;  ///< That wait for the name of a node that lives, per node.

class NodeNames {
 public:
  /// Another process that joined under the name of a node that has a stream.
  struct Claimant {
    StreamNumber stream;
    Join join;
    Instant since;
  };

  // Incarnations
  [[nodiscard]] bool is_replaced(const Incarnation& who) const;
  /// The process is refused from now on.
  void replace(const Incarnation& who);
  /// A node is lost, whether it had a place in the world or not. If another process joins under its name, this one is replaced.
  void lose(const NodeTable::Node& node);
  /// This process has the name from now on.
  void take_over(const Incarnation& who);
  /// The message of this process on this stream is older than what is known of its name. `here`: the node of that name; nullptr: it is not here.
  [[nodiscard]] bool is_outdated(StreamNumber stream, const Incarnation& who, const NodeTable::Node* here) const;
  /// Of whom an outdated message came: true if it is the process that has, or had last, the name.
  [[nodiscard]] bool is_newest(const Incarnation& who, const NodeTable::Node* here) const;

  // Claimants
  enum class Claim { waits, waits_already, too_many };
  Claim claim(StreamNumber stream, const Join& join, Instant now);
  /// Names that are claimed.
  [[nodiscard]] std::vector<NodeId> claimed() const;
  /// What becomes of the claimants of a name.
  struct Resolved {
    std::vector<StreamNumber> refused;  ///< The node has said something long enough after these came: it lives.
    std::optional<Claimant> heir;       ///< The node is gone: this one has its name. The others wait on, as if they had come now.
  };
  /// Nothing, where nobody claims it.
  [[nodiscard]] Resolved resolve(const NodeId& name, const NodeTable& nodes, const Timeouts& timeouts, Instant now);
  /// This coordinator was stopped itself, so all streams count as heard now: that says of no node that it lives. Claimants wait as if they had come now.
  void begin_anew(Instant now);
  /// The job is over: the streams of all claimants, which claim nothing any more.
  [[nodiscard]] std::vector<StreamNumber> end_claims(const NodeTable& nodes);
  /// When the first claimant of each name is refused, if the node lives.
  [[nodiscard]] std::vector<Instant> refused_at(Duration heartbeat_limit) const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  struct Former {
    std::uint64_t incarnation = 0;
    StreamNumber first{}, newest{};
  };
  std::map<NodeId, std::set<std::uint64_t>> replaced_;
  std::map<NodeId, Former> former_;                    // lost nodes, until another incarnation joins under the name
  std::map<NodeId, std::vector<Claimant>> claimants_;  // the earliest first; none is empty
};

}  // namespace elrun::inline v0
