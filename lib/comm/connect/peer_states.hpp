#pragma once
/// \file How far this rank is with each of its peers: an enum and the table of its transitions. Pure.

#include <cstdint>
#include <vector>

#include <elrun/ids.hpp>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

enum class PeerState : std::uint8_t {
  absent,     ///< Nothing was heard of it.
  reached,    ///< Its host accepted a connection, so it can be reached. It has not proved the key.
  connected,  ///< Both have proved the key, and the transport is chosen.
  lost,       ///< The connection ended. Fatal only to calls that still need the peer.
};

struct PeerTransition {
  PeerState from, to;
};
inline constexpr PeerTransition peer_transitions[] = {
    {PeerState::absent, PeerState::reached},     // this rank dialled it
    {PeerState::reached, PeerState::reached},    // and dialled again, as the first connection broke
    {PeerState::absent, PeerState::connected},   // it dialled this rank
    {PeerState::reached, PeerState::connected},  //
    {PeerState::connected, PeerState::lost},     // for good: a lost peer does not come back within a generation
};
[[nodiscard]] constexpr bool may_follow(PeerState from, PeerState to) {
  for (const PeerTransition& each : peer_transitions)
    if (each.from == from && each.to == to) return true;
  return false;
}

/// All peers of one rank.
class PeerStates {
 public:
  PeerStates(Rank me, WorldSize world) : me_{me}, states_(world.value(), PeerState::absent) {}
  [[nodiscard]] PeerState of(Rank peer) const { return states_[peer.value()]; }
  void enter(Rank peer, PeerState state) {
    ELRUN_ASSERT(peer != me_ && may_follow(of(peer), state));
    states_[peer.value()] = state;
  }
  /// Both have proved the key to each other, whatever became of the connection since.
  [[nodiscard]] bool has_connected(Rank peer) const { return of(peer) == PeerState::connected || of(peer) == PeerState::lost; }
  /// Peers that have not connected yet. Empty: the group is complete.
  [[nodiscard]] std::vector<Rank> missing() const {
    std::vector<Rank> ranks;
    for (std::uint32_t r = 0; r < states_.size(); ++r)
      if (Rank{r} != me_ && !has_connected(Rank{r})) ranks.push_back(Rank{r});
    return ranks;
  }

 private:
  const Rank me_;
  std::vector<PeerState> states_;
};

}  // namespace elrun::inline v0
