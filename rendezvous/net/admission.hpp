#pragma once
/// \file Admission control: which connection has to give up its place when all places are taken. Pure.
///
/// A connection holds a place from `accept` until a node or a client on it was admitted (see `net/admission_watch.hpp`). A peer that
/// never authenticates can hold connections open: silent ones, or ones that send a byte now and then. So nothing that a connection sends
/// keeps its place. What counts is its age, and how many places its address holds:
///  * While other connections wait, a connection has `age_max` (0.25 to 2 s) to be admitted. The more wait, the shorter.
///  * An address that holds less than half as many places as the average of all addresses loses none. So a node never competes with
///    unauthenticated peers at other addresses. One behind the same address as such a peer (NAT) has its `age_max`, which several round trips
///    fit into.
///  * When many nodes are admitted and each takes long, because the machine is busy, `age_max` grows with that (2 s at most).
///    Otherwise a crowd of honest nodes would push out its own members just before they are admitted.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <elrun/philox.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

struct AdmissionLimits {
  std::size_t places = 512;       ///< Connections that were accepted and not admitted yet. More wait in the system's backlog.
  Duration age_shortest = 250ms;  ///< A connection keeps its place for so long, however many others wait.
  Duration age_longest = 2s;      ///< While others wait, it keeps its place no longer than this.
};

using ConnectionId = std::uint64_t;

class AdmissionPlaces {
 public:
  explicit AdmissionPlaces(AdmissionLimits limits) : limits_{limits} {}

  /// `address`: who it counts for, see `counted_address`.
  ConnectionId accepted(std::string_view address, Instant now);
  /// It is in the queue of connections that are handed to gRPC. While it waits for this process, it keeps its place.
  void waits_for_grpc(ConnectionId id);
  /// gRPC has it. Its age begins anew.
  void handed_to_grpc(ConnectionId id, Instant now);
  /// A node or client was admitted on it: it holds no place any more.
  void admitted(ConnectionId id, Instant now);
  /// It is closed.
  void gone(ConnectionId id);

  [[nodiscard]] std::size_t size() const { return connections_.size(); }
  [[nodiscard]] bool is_full() const { return connections_.size() >= limits_.places; }
  /// How long a connection may hold its place while `waiting` others want one.
  [[nodiscard]] Duration age_max(std::size_t waiting, Instant now) const;
  /// Which one has to go for one of the `waiting`; nothing when none is old enough.
  [[nodiscard]] std::optional<ConnectionId> to_end(std::size_t waiting, Instant now, Rng& rng) const;
  /// The addresses that hold the most: "10.0.0.9 (430 of 512 places), 10.0.0.7 (12)".
  [[nodiscard]] std::string most_places() const;

 private:
  using Addresses = std::map<std::string, std::size_t, std::less<>>;  // and how many places each holds
  struct Connection {
    Addresses::iterator address;
    Instant since;
    bool can_be_ended = true;
  };
  void forget(std::map<ConnectionId, Connection>::iterator connection);
  void learn(Duration took, Instant now);

  AdmissionLimits limits_;
  ConnectionId last_id_ = 0;
  std::map<ConnectionId, Connection> connections_;
  Addresses addresses_;
  // Admissions in this span of time and in the one before, so that each is remembered for a whole span at least.
  struct Span {
    std::size_t admissions = 0;
    Duration slowest{};
  };
  Span span_, before_;
  Instant span_began_{};
};

/// The address that a connection counts for: an IPv4 address, or the first 64 bits of an IPv6 address, since whoever has one
/// address of such a network has all of them. `host` is numeric.
[[nodiscard]] std::string counted_address(const std::string& host);

}  // namespace elrun::inline v0
