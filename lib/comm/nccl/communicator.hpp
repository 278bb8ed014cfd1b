#pragma once
/// \file NcclCommunicator: one communicator and its owner, the one thread that makes calls of NCCL for it. Only sources of this folder include it.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <elrun/device.hpp>
#include <elrun/process_group.hpp>

#include "lib/comm/nccl/communicator_life.hpp"
#include "lib/comm/nccl/facts.hpp"
#include "lib/comm/nccl/library.hpp"

namespace elrun::inline v0 {

struct NcclGroup {
  CommunicatorPlace place;
  CommunicatorLimits limits{};
  std::vector<NcclId> ids;  ///< As `agree_on_nccl` returned them.
  Duration connect;         ///< The communicator is made within this.
  /// A peer whose connection to the host's group has ended, if there is one. Thread-safe.
  std::function<std::optional<Rank>()> lost_peer{};
  /// Called once where something failed that is not the generation's end, before the abort, on the owner's thread: the other ranks are to hear of it. It waits for nobody, and may call `revoke`.
  std::function<void(const Failure&)> failed{};
  /// Registers what is to be called when the generation is over, on any thread; while the communicator is being made, too.
  std::function<void(std::function<void(const Failure&)>)> on_generation_over{};
};

/// Nobody waits inside NCCL: the communicator never blocks, and the owner asks it how far it is. When CommunicatorLife says so, the owner gives it
/// up to a thread that aborts it.
///
/// A call is in its stream when `call` returns. Its Work succeeds only if its end was seen while nothing had failed; when it fails, nothing of it
/// touches its buffers any more, unless the remedy is `exit_process`: then a kernel may still run.
class NcclCommunicator {
 public:
  /// Makes calls of NCCL on the owner's thread, between the start and the end of a group. Returns the first answer that is no success.
  using Body = std::function<ncclResult_t(const NcclLibrary& nccl, ncclComm_t comm, cudaStream_t stream)>;

  /// All ranks make it at the same time. Fails with `exit_process` at once where an abort in this process is stuck.
  static Result<std::unique_ptr<NcclCommunicator>> make(const NcclLibrary& nccl, NcclGroup group);

  /// Waits until the call is in its stream, or failed; `name` is for failures. By one thread at a time.
  Work call(std::string name, Stream stream, Duration limit, Body body);
  /// Ends all calls with this reason. Thread-safe; never waits.
  void revoke(const Failure& why);
  /// The orderly end, once all calls are over: all ranks come to it. Afterwards every call fails.
  Result<void> close(Duration limit);
  /// Aborts, and waits as long as an abort may take. Where that is not enough, what is left stays behind until the process ends.
  ~NcclCommunicator();

 private:
  class Owner;
  explicit NcclCommunicator(std::shared_ptr<Owner> owner);
  std::shared_ptr<Owner> owner_;
  const int process_;  ///< In a forked child there is no owner.
};

}  // namespace elrun::inline v0
