#pragma once
/// \file RecoveryWindow: a generation that another coordinator began, and whose members come to this one, each with its seat. Pure.
///
/// If all members come within 10 s of the last one that came, this coordinator adopts the generation, and nothing restarts. Otherwise the
/// generation ends, and the members that came are the first ones in the next.
///
/// What always holds: every seat in the window agrees with the first one on generation, size and members.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/stall.hpp"

namespace elrun::inline v0 {

/// A live agent reconnects to a lost coordinator within 2 s. Once the generation is known to be over, or not to go on, wait this long for the
/// remaining agents.
constexpr Duration reconnect_window = 3s;

class RecoveryWindow {
 public:
  /// What a node that is here said last.
  using JoinOf = std::function<const Join&(const NodeId&)>;

  /// `resuming` is the first member that came.
  RecoveryWindow(const Join& resuming, Duration wait, Instant now);

  [[nodiscard]] const Generation& generation() const { return generation_; }
  [[nodiscard]] std::uint32_t nodes() const { return shape_.nodes; }
  /// Members that have come, by group rank.
  [[nodiscard]] const std::map<std::uint32_t, NodeId>& seats() const { return seats_; }
  /// The generation ends then, for this reason.
  [[nodiscard]] Instant until() const { return until_; }
  [[nodiscard]] const std::string& why() const { return why_; }
  void excuse(const Stall& stall) { stall.excuse(until_); }

  enum class Taken { no, yes, complete };
  /// A member came with its seat. `no`: it contradicts the others, or another node has the seat. `complete`: it was the last one.
  [[nodiscard]] Taken take(const Join& resuming, Instant now);
  /// The node is gone; another may come with its seat.
  void remove(const NodeId& node);

  /// True if waiting for the last missing member is pointless, because the generation was coordinated in that member's process. That process
  /// ended with its coordinator, or keeps its own line to it and never comes. Where coordinators are elected it may have stepped down, and
  /// come like the others: there it is waited for, unless the generation cannot go on anyway, or the process fell silent to all others.
  [[nodiscard]] bool only_its_coordinator_is_missing(bool elected, const JoinOf& join_of) const;
  /// All members, in the order of their ranks. Nothing if what they say does not hash to the members of the generation that they were told.
  [[nodiscard]] std::optional<std::vector<Member>> all_members(const JoinOf& join_of) const;
  /// The members that have come. Their ranks are not known: base ranks are 0.
  [[nodiscard]] std::vector<Member> present_members(const JoinOf& join_of) const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  Generation generation_;
  Seat shape_;                             // of one of them; all agree but for their own place
  std::map<std::uint32_t, NodeId> seats_;  // by group rank
  Duration wait_;
  Instant until_;
  std::string why_;           // it ends then
  bool is_hopeless_ = false;  // a member says that it cannot go on
};

}  // namespace elrun::inline v0
