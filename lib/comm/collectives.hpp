#pragma once
/// \file Collectives: what the ranks of one generation do together on host memory. `ProcessGroup` and the job make their calls here; transports are
/// behind it. Between ranks of one group, `choose` picks the transport. Device memory has calls of its own: device_collectives.hpp.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include <elrun/process_group.hpp>

#include "lib/comm/label.hpp"

namespace elrun::inline v0 {

/// What a call needs besides its buffers.
struct CallOptions {
  Duration limit;     ///< The call is over within this, or fails with `deadline_passed` and names who is missing.
  CallLabel label{};  ///< What the call is for. Ranks whose labels differ fail with `mismatch`.
};

/// One rank's part in the calls of one generation. All ranks make the same calls in the same order, each from one thread; `revoke` from any.
///
/// What holds for each implementation:
/// * A reduction folds in rank order, so its bits do not depend on the transport or on the number of elements.
/// * A call returns only when nothing touches its buffers any more, also when it fails. What does not fit (a length, a rank, an overlap) is
///   `invalid_argument` before anything moves.
/// * After any other failure the group is over: all later calls fail the same way.
/// * Every call ends within its limit. Failures name this rank, the generation, and the peer where there is one.
/// * Bytes of another generation are never taken.
class Collectives {
 public:
  virtual ~Collectives() = default;  ///< Ends the calls under way; waits for no peer.
  [[nodiscard]] virtual const Membership& membership() const = 0;

  /// Reduces element by element over all ranks, in place.
  virtual Result<void> all_reduce(std::byte* data, std::size_t count, DType type, ReduceOp op, const CallOptions& call) = 0;
  /// `in` has world size x `out_count` elements; `out` gets this rank's part of the reduction.
  virtual Result<void> reduce_scatter(const std::byte* in, std::size_t in_count, std::byte* out, std::size_t out_count, DType type,
                                      ReduceOp op, const CallOptions& call) = 0;
  /// Everybody's `in`, in rank order.
  virtual Result<void> all_gather(std::span<const std::byte> in, std::span<std::byte> out, const CallOptions& call) = 0;
  /// Everybody gets the root's bytes.
  virtual Result<void> broadcast(std::span<std::byte> data, Rank root, const CallOptions& call) = 0;
  /// Part r of `in` goes to rank r; part r of `out` comes from rank r.
  virtual Result<void> all_to_all(std::span<const std::byte> in, std::span<std::byte> out, const CallOptions& call) = 0;
  /// List r of `sends` goes to rank r, list r of `receives` comes from rank r. This rank's own lists are copied.
  /// What comes from a peer overlaps no other piece (not checked: sorting the pieces of every call would cost more than this is worth).
  virtual Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const CallOptions& call) = 0;
  /// A call of two ranks only: `out` goes to the peer, `in` comes from it. Either may be empty.
  virtual Result<void> send_receive(std::span<const std::byte> out, std::span<std::byte> in, Rank peer, const CallOptions& call) = 0;

  /// From now on peers of this host read what is sent out of `buffer` where it lies, if a transport can.
  virtual Result<void> share(const SharedBuffer& buffer) = 0;
  /// The first peer whose connection has ended. Fatal only to what still needs that peer. Thread-safe.
  [[nodiscard]] virtual std::optional<Rank> lost_peer() const = 0;
  /// Ends every call now, with `generation_over` and this reason. Thread-safe; never waits.
  virtual void revoke(const Failure& why) = 0;
  /// The same, but with this failure as it is: the generation may live on. Unless the group has failed before.
  virtual void end(const Failure& why) = 0;
};

}  // namespace elrun::inline v0
