#pragma once
/// \file ArrayExchange: how the ranks of one generation exchange what lies in a device's memory: parameters, leaves, sums, moments. What the job
/// decides with (votes, needs, statuses, host state) never goes this way: it stays on the host transport.

#include <functional>
#include <span>

#include <elrun/process_group.hpp>

#include "lib/base/clock.hpp"

namespace elrun::inline v0 {

/// What a call needs besides its lists.
struct ArrayCall {
  Stream stream;  ///< In whose order the exchange works; of the lists' device.
  /// The exchange of host memory between the same ranks, as a part of this call.
  std::function<Result<void>(std::span<const SendList>, std::span<const ReceiveList>)> host;
  std::function<bool()> over;  ///< Whether the generation is. From the calling thread.
  Duration limit;              ///< Of each wait.
};

/// One rank's part. All ranks make the same calls in the same order; each one at a time, on whichever thread.
///
/// What holds for each implementation:
/// * Runs of the lists are of one device's memory, and no loop of the host touches them. An exchange is work of the call's stream: it sends what work before it has
///   left, and work after it sees what came.
/// * When it fails, what it was to receive is unspecified, and what it was to send is as it was.
/// * Every wait ends: by its limit, or soon after the generation is over. A failure with the remedy `exit_process` says that work may still touch the lists,
///   or that the device is lost.
class ArrayExchange {
 public:
  virtual ~ArrayExchange() = default;
  virtual Result<void> exchange(std::span<const SendList> sends, std::span<const ReceiveList> receives, const ArrayCall& call) = 0;
  /// Ends the call under way, and all later ones. Thread-safe; never waits. For what `ArrayCall::over` does not end.
  virtual void revoke(const Failure&) {}
};

}  // namespace elrun::inline v0
