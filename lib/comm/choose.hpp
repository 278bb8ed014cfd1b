#pragma once
/// \file Which transport carries the bytes between this rank and one peer. Pure: everything it depends on is in `PairFacts`.
///
/// The facts arrive one after the other while two ranks connect. `choose` is asked again with each of them, and its last answer holds
/// for the whole generation. A new transport between pairs (RDMA, for example) begins with a new fact and a new
/// rule here; README.md has the other steps. Transports of whole groups, such as NCCL, are no matter of this file: their seam is device_collectives.hpp.

#include <optional>

#include <elrun/process_group.hpp>

namespace elrun::inline v0 {

enum class Known : std::uint8_t { not_yet, no, yes };

/// What this rank knows about itself and one peer.
struct PairFacts {
  Transport wanted = Transport::automatic;  ///< By this rank's program, or ELRUN_TRANSPORT.
  bool same_boot = false;                   ///< Both read the same boot id: they run on the same kernel.
  bool both_listen = false;             ///< Both listen at a Unix socket for ranks of their host. A rank that was told to use TCP does not.
  Known same_network = Known::not_yet;  ///< The peer's Unix socket can be reached; not from another network namespace (a container).
  Known memory = Known::not_yet;        ///< Both made their shared memory and mapped the other's.
};

/// Whether the two connect over a Unix socket, where they can pass each other descriptors. Otherwise they connect over TCP.
[[nodiscard]] bool connects_by_unix_socket(const PairFacts& facts);

/// `shm` or `tcp` (frames over the pair's connection): the best transport that the facts known so far allow. Nothing when `wanted` rules out
/// what is left: the group must not start.
[[nodiscard]] std::optional<Transport> choose(const PairFacts& facts);

}  // namespace elrun::inline v0
