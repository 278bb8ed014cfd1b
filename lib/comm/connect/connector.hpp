#pragma once
/// \file Connector: makes one connection to every peer of a generation. Each pair proves the generation's key to each other and agrees on a transport.
///
/// Each rank publishes where it listens, dials all lower ranks, and is dialled by all higher ones. Ranks of one host connect at a Unix socket,
/// where each offers the other its shared memory. The pair uses it only if both can map it; otherwise frames go over that socket.
/// Until a peer has proved the key, its connection costs a bounded amount of memory and time.

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <elrun/philox.hpp>
#include <elrun/process_group.hpp>
#include <elrun/session.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/digest.hpp"
#include "lib/comm/choose.hpp"
#include "lib/comm/connect/listeners.hpp"
#include "lib/comm/connect/peer_states.hpp"
#include "lib/comm/shm/lanes.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

struct ConnectedPeer {
  Rank rank;
  StreamSocket socket;
  Transport transport;  ///< `shm` or `tcp`.
  bool checked;         ///< Frames on this connection need a checksum: they may cross a wire.
};

/// `publish` runs on the caller's thread, before the loop does. Everything else is on the loop's thread, the events, too.
class Connector {
 public:
  struct Events {
    std::function<void(ConnectedPeer)> connected;
    std::function<void()> complete;  ///< All peers are connected. Comes after the last `connected`.
    std::function<void(Failure)> failed;
  };
  struct Group {
    Membership me;
    Key256 key;
    std::string name;  ///< Of the group within the generation.
    Transport transport = Transport::automatic;
    Duration handshake = 10s;  ///< Of each one, so that a half-open connection costs little.
    Duration connect;          ///< Of all that `begin` does: then every peer has published its address.
    Deadline deadline;         ///< Of `publish` too, which waits for peers that come late.
    Resolver resolver = resolve;
  };
  Connector(boost::asio::io_context& loop, Group group, PeerStates& states, Events events);

  /// Listens, tells the others where through the session's store, and learns where they listen. Returns this rank's shared memory, if there
  /// are peers with which it may be used and the system gives some.
  Result<std::unique_ptr<Lanes>> publish(Session& session);
  /// By what all ranks have published, all may share memory. The same answer on each of them, whatever their pairs come to.
  [[nodiscard]] bool all_may_share_memory() const;
  /// `lanes`: what `publish` returned, or null. It outlives this object.
  void begin(Lanes* lanes);
  /// Closes all that is not connected yet.
  void stop();

 private:
  struct Peer {
    Rank rank{};
    std::vector<SocketAddress> addresses;  // of lower ranks; the first is dialled next
    SocketAddress unix_address;            // likewise, where they listen for ranks of their host
    PairFacts facts;
    std::string last_problem;  // why it is not connected yet
    bool is_silent = false;    // its host did not answer when it was dialled last
    int refusals = 0;          // how often the system would not pass this rank's descriptors to it
    std::string refused;       // its words, the last time
  };
  struct Pending;  // a connection that has not proved the key yet
  using PendingHandle = std::shared_ptr<Pending>;

  [[nodiscard]] Failure not_connected() const;
  void fail_for_the_unreachable();
  void complete_if_all_are_here();

  /// Fails where the system has no watch for it, or no memory for one.
  Result<PendingHandle> pend(Fd fd, int family);
  void dismiss(const PendingHandle& pending);
  bool make_room(int family);
  std::deque<PendingHandle>& guests(bool is_unix) { return guests_[is_unix ? 1 : 0]; }
  void hear(Fd fd, int family);

  void dial(Peer& peer);
  void introduce(const PendingHandle& pending, Peer& peer);
  void not_reached(Peer& peer, const Failure& why);
  void dial_later(Peer& peer, std::string why);

  void proved(const PendingHandle& pending, Peer& peer);
  void offer_memory(const PendingHandle& pending, Peer& peer);
  void note_refusal(Peer& peer, const std::string& why);
  void warn(const std::string& what) const;
  void look_at_memory(const PendingHandle& pending, Peer& peer);
  void give_up(const PendingHandle& pending, Peer& peer, std::string why);
  void admit(Peer& peer, const PendingHandle& pending);

  SteadyClock clock_;
  boost::asio::io_context& loop_;
  const Group group_;
  PeerStates& states_;
  const Events events_;
  std::vector<Peer> peers_;
  Listeners listeners_;
  boost::asio::steady_timer deadline_timer_, silence_timer_;
  std::set<PendingHandle> pending_;
  std::array<std::deque<PendingHandle>, 2>
      guests_;  // of these, those that came in and have not said who they are, in their order; by TCP, by Unix socket
  Rng jitter_{0};
  Lanes* lanes_ = nullptr;
  std::string no_lanes_;        // why there are none
  std::string unheard_;         // why the latest connection that came in could not be taken
  bool told_unusable_ = false;  // a peer's memory
  bool stopped_ = false;
};

}  // namespace elrun::inline v0
