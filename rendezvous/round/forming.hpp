#pragma once
/// \file Forming: the time between two generations, and before the first: since when nodes wait, when the round closes, when the job is given
/// up, and who gets a place. Pure.
///
/// All of it starts anew when the last generation ends, and is over when the next one begins.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/round/node_table.hpp"
#include "rendezvous/round/stall.hpp"

namespace elrun::inline v0 {

/// Where the others are fewer than the minimum, an excluded node is taken before its pause is over, but not before a node that is missing
/// had this long to come back (half of the join deadline, if that is less).
constexpr Duration exclusion_stays = 60s;

class Forming {
 public:
  /// Nodes wait for a generation from now on. Not asked anew where they do already.
  void start(Instant now) {
    if (!since_) since_ = now;
  }
  /// A generation ends: they wait anew.
  void restart(Instant now) { since_ = now, enough_since_.reset(); }
  void excuse(const Stall& stall) {
    if (since_) *since_ += stall.length;
    if (enough_since_) *enough_since_ += stall.length;
  }
  /// Nobody is here any more, so nobody waits.
  void stop() { since_.reset(); }
  /// A generation begins.
  void end() { since_.reset(), enough_since_.reset(), lift_told_ = false; }

  [[nodiscard]] std::optional<Instant> since() const { return since_; }
  /// Says whether the minimum is there; returns it.
  bool has_enough(bool enough, Instant now) {
    if (!enough) enough_since_.reset();
    else if (!enough_since_) enough_since_ = now;
    return enough;
  }
  /// Since when the minimum is there.
  [[nodiscard]] std::optional<Instant> enough_since() const { return enough_since_; }

  /// The minimum was not reached for so long: the job fails.
  [[nodiscard]] std::optional<Instant> given_up_at(Duration join_limit) const {
    return since_ ? std::optional{*since_ + join_limit} : std::nullopt;
  }
  /// While the minimum is missed, an excluded node is taken then.
  [[nodiscard]] std::optional<Instant> lift_at(Duration join_limit) const;
  /// True once: nodes are told that an excluded node is taken if nobody else comes.
  [[nodiscard]] bool tell_of_lift() { return !std::exchange(lift_told_, true); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::optional<Instant> since_;
  std::optional<Instant> enough_since_;
  bool lift_told_ = false;
};

/// No member of the last generation waits, or none has run yet: these nodes form a world for the first time.
[[nodiscard]] inline bool is_first_formation(const NodeTable& nodes) { return nodes.newcomers().size() == nodes.waiting(); }
/// The members, and newcomers that wait for a place, satisfy the minimum `without` these nodes.
[[nodiscard]] bool others_suffice(const NodeTable& nodes, const std::set<NodeId>& without, std::size_t needed);
/// Who gets a place, of all that wait: members of the last generation, be it this coordinator's or the one that was over before it came
/// (`ended`); then newcomers in the order in which they came, as far as there is `room`. Of two nodes with one hint the later comes first:
/// the earlier one is probably on its way out. Members that are `unprepared` are left out where the others are `needed` nodes; newcomers that are come last,
/// and only as many as are missing for that.
[[nodiscard]] std::vector<NodeId> choose_nodes(
    const NodeTable& nodes, std::size_t room, const std::optional<Generation>& ended = {}, std::size_t needed = 0,
    const std::function<bool(const NodeTable::Node&)>& unprepared = [](const NodeTable::Node&) { return false; });

}  // namespace elrun::inline v0
