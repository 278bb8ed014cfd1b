#pragma once
/// \file Connections on which nobody was admitted yet: how many there are, how much they sent, and when they have to go.
///
/// gRPC keeps what a peer sends before the peer has authenticated, and has no limit for it. So each connection is watched until
/// a node or client on it was admitted. The watch has a thread of its own: a peer that sends without end can block any thread
/// that calls gRPC, the coordinator's event loop included.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include <elrun/units.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/fd.hpp"
#include "rendezvous/net/admission.hpp"

namespace elrun::inline v0 {

/// A connection may send this much before somebody on it is admitted. A TLS handshake counts.
constexpr Bytes unadmitted_bytes_max = 64_KiB;
/// All of them together. A node needs 2 to 6 KiB of it, most of them for certificates. gRPC can keep ten times as much.
constexpr Bytes unadmitted_bytes_together_max = 4_MiB;
/// The kernel is asked this often how much a connection has sent. What it sends in between, gRPC reads.
constexpr Duration admission_look_every = 10ms;

/// Why a connection was ended to make room. Its log line names the addresses that hold the most places.
constexpr std::string_view ended_for_others =
    "connections that were not admitted in time while others waited (they may never authenticate)";

/// All methods can be called from any thread.
class AdmissionWatch {
 public:
  /// `ended` is called for each connection that the watch ends: why, and the peer's address. It may be called on the watch's
  /// thread and on the caller's of `make_room`. `patience`: how long gRPC may have a connection until somebody on it is admitted.
  AdmissionWatch(const Clock& clock, Duration patience, AdmissionLimits limits, std::uint64_t seed,
                 std::function<void(std::string_view why, const std::string& peer)> ended);
  ~AdmissionWatch();  ///< Ends all connections that it watches.
  AdmissionWatch(const AdmissionWatch&) = delete;
  AdmissionWatch& operator=(const AdmissionWatch&) = delete;

  /// A connection was accepted and takes a place. Until `watch_bytes` it is the caller's, who says when it is closed.
  ConnectionId accepted(std::string_view address);
  void closed(ConnectionId id);
  /// The connection is about to be handed to gRPC. `socket` is a second descriptor of it; `peer` as `plain_peer` writes it.
  void watch_bytes(ConnectionId id, Fd socket, std::string peer);
  void handed_to_grpc(ConnectionId id);
  /// Somebody on this connection was admitted: it is watched no longer, and holds no place.
  void admitted(std::string_view peer);

  [[nodiscard]] bool is_full() const;
  struct Room {
    bool made = false;                     ///< There is a place, once `to_close` is closed.
    std::optional<ConnectionId> to_close;  ///< A connection that is the caller's and has to go.
  };
  /// Ends a connection for one of the `waiting` ones, where one is old enough to go.
  [[nodiscard]] Room make_room(std::size_t waiting);
  /// The addresses that hold the most places, for the log.
  [[nodiscard]] std::string most_places() const;

 private:
  struct Watched {
    ConnectionId id;
    Fd socket;
    std::string peer;
    Instant until;
    std::uint64_t bytes = 0;  // received at the last look
  };
  void watch();
  void look();
  void end_largest();
  void end(const Watched& one, std::string_view why);

  const Clock& clock_;
  const Duration patience_;
  const std::function<void(std::string_view, const std::string&)> ended_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  AdmissionPlaces places_;
  Rng rng_;
  std::list<Watched> watched_;  // oldest first
  bool over_ = false;
  bool has_garbage_ = false;  // a connection was ended, and the allocator may still keep what gRPC had allocated for it
  std::thread thread_;
};

/// The peer of a connection, always written the same way: "10.0.0.1:29500", "[fe80::1%eth0]:29500". `grpc_peer`: as gRPC
/// writes it, "ipv4:10.0.0.1:29500".
[[nodiscard]] std::string plain_peer(std::string_view grpc_peer);
/// Its address alone: "10.0.0.1", also where an IPv6 socket sees that as "::ffff:10.0.0.1"; "fe80::1%eth0".
[[nodiscard]] std::string plain_host(std::string_view grpc_peer);

}  // namespace elrun::inline v0
