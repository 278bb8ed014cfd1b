#pragma once
/// \file LossPolicy: which peers are lost, and which failure a group ends with because of it. Pure.
///
/// When one rank fails, it closes its connections, so its peers see it leave although another rank failed first. The policy therefore waits for
/// `loss_grace` before it blames anybody, and then prefers, in this order: a peer that has stopped answering, the peer that the call
/// needs, the first peer that was lost.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>

#include "lib/base/timeouts.hpp"

namespace elrun::inline v0 {

/// Between seeing that a needed peer is lost and failing for it. Within this time the session, which knows the root cause, mostly ends the
/// generation, or the peer that failed first is seen to leave, too.
constexpr Duration loss_grace = 100ms;

/// TCP connections are looked at this often. A peer that `looks_max` looks in a row found not answering cannot be reached, though it may live.
constexpr Duration wire_look = 1s;
constexpr auto looks_max = static_cast<std::uint32_t>(Timeouts{}.peer_silence / wire_look);
constexpr std::uint32_t looks_of_suspicion = looks_max / 3;

enum class ConnectionEnd : std::uint8_t {
  closed,  ///< The peer closed it, or its process ended.
  broken,  ///< The system reports an error.
  silent,  ///< The peer's host did not answer.
};

[[nodiscard]] Failure unreachable_peer(Rank peer, std::string_view why);

class LossPolicy {
 public:
  explicit LossPolicy(WorldSize world) : peers_(world.value()) {}

  /// The connection to this peer ended. The first report counts. `error`: the system's words, where it is `broken`.
  void ended(Rank peer, ConnectionEnd how, std::string_view error = {});
  [[nodiscard]] bool is_lost(Rank peer) const { return peers_[peer.value()].lost.has_value(); }

  /// One look at a connection during a call. Looks are counted instead of time, so that a process that was stopped for a while blames nobody.
  /// True: this was the last look that the peer had; its connection counts as ended, `silent`.
  [[nodiscard]] bool looked(Rank peer, bool unanswered);

  /// The call at hand needs this peer, which is lost, or cannot go on for another reason (`otherwise`). True the first time: call `blame`
  /// after `loss_grace`.
  [[nodiscard]] bool missed(Rank peer, const Failure& otherwise = {});
  /// The failure that the group ends with.
  [[nodiscard]] Failure blame() const;

 private:
  struct Peer {
    std::optional<Failure> lost;
    std::uint32_t unanswered = 0;  // looks in a row that found no answer
  };
  struct Missed {
    Rank peer;
    Failure otherwise;
  };
  std::vector<Peer> peers_;
  std::optional<Rank> first_lost_;
  std::optional<Missed> missed_;
};

}  // namespace elrun::inline v0
