#pragma once
/// \file DeviceCollectives: what the ranks of one generation do together on device memory, in the order of streams.
///
/// An interface of its own beside Collectives, for a call means something else: it is begun when it returns, and its stream goes on behind it.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <elrun/process_group.hpp>

#include "lib/comm/nccl/facts.hpp"

namespace elrun::inline v0 {

struct DeviceCall {
  Stream stream;   ///< Of the group's device. The call runs behind what the stream was given before.
  Duration limit;  ///< From now on; what is before the call in the stream counts, too.
};

/// One rank's part in the calls of one generation. All ranks make the same calls in the same order, whatever their streams; each from one thread,
/// and `revoke` from any.
///
/// What holds for each implementation:
/// * A call returns when it is in its stream, or has failed. Its buffers are the call's until its Work is over.
/// * Only a Work that succeeded tells that results are good. Behind a call that failed the stream goes on over garbage, and events complete.
/// * When a Work fails, nothing of the call touches its buffers any more, unless the remedy is `exit_process`: then a kernel may still run.
/// * What does not fit (a length, a rank, a stream of another device, CUDA's default stream by any handle) is `invalid_argument` before anything moves. After any other failure the
///   group is over: all later calls fail the same way.
/// * Every call ends within its limit and the time of an abort. Failures name this rank, the generation and the device, and the peer where one is
///   known.
/// * Moves of bytes are exact. **Reductions are not folded in rank order**: floating sums depend on the world and on the transport.
class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;  ///< Aborts the calls under way; waits for no peer.
  [[nodiscard]] virtual Device device() const = 0;

  virtual Work all_reduce(std::byte* data, std::uint64_t count, DType type, ReduceOp op, const DeviceCall& call) = 0;
  /// `in` has world size x `out_count` elements.
  virtual Work reduce_scatter(const std::byte* in, std::uint64_t in_count, std::byte* out, std::uint64_t out_count, DType type, ReduceOp op,
                              const DeviceCall& call) = 0;
  virtual Work all_gather(DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out, const DeviceCall& call) = 0;
  virtual Work broadcast(DeviceSpan<std::byte> data, Rank root, const DeviceCall& call) = 0;
  virtual Work all_to_all(DeviceSpan<const std::byte> in, DeviceSpan<std::byte> out, const DeviceCall& call) = 0;
  /// Piece k of list r goes to rank r, as piece k of its list for this rank: they agree one by one. This rank's own lists are copied.
  virtual Work exchange(std::span<const DeviceSendList> sends, std::span<const DeviceReceiveList> receives, const DeviceCall& call) = 0;
  /// A call of two ranks only: `out` goes to the peer, `in` comes from it. Either may be empty.
  virtual Work send_receive(DeviceSpan<const std::byte> out, DeviceSpan<std::byte> in, Rank peer, const DeviceCall& call) = 0;

  /// The orderly end, once all calls are over. All ranks come to it.
  virtual Result<void> close(Duration limit) = 0;
  /// Ends every call now, with this reason. Thread-safe; never waits.
  virtual void revoke(const Failure& why) = 0;
};

struct DeviceGroupToJoin {
  Device device;
  std::string name{};  ///< As GroupToJoin::name.
  Duration connect;    ///< All ranks have come, and the communicator is made, within twice this.
  bool connect_pairs =
      false;  ///< All pairs are connected as well, within `connect` once more. Otherwise the first call that moves bytes between two ranks connects them, and waits for both.
  /// A peer whose connection to the host's group has ended. Thread-safe; called as long as the process lives.
  std::function<std::optional<Rank>()> lost_peer;
  /// Called once where a call fails for a reason of this rank's own, before what it has begun is taken back, which waits for the other ranks of this machine: they are to hear of it here. On any
  /// thread, as long as the process lives; it waits for nobody.
  std::function<void(const Failure&)> failed{};
};

/// What this process says of NCCL and of its device, without an id. Loads NCCL.
[[nodiscard]] NcclFacts nccl_facts(Device device);

/// All ranks of the session's generation make it, whichever devices they have. Fails on all of them where one cannot take part, and names it.
[[nodiscard]] Result<std::unique_ptr<DeviceCollectives>> join_device_collectives(Session& session, const DeviceGroupToJoin& group);

}  // namespace elrun::inline v0
