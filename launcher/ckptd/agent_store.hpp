#pragma once
/// \file AgentStore: the job's store as `elrun ckptd` reaches it, through its agent's socket. Blocking, one connection for one thread.

#include <functional>

#include "lib/base/fd.hpp"
#include "lib/base/files.hpp"
#include "lib/link/message.hpp"
#include "lib/link/request_store.hpp"

namespace elrun::inline v0::launcher {

/// From one thread at a time. It connects at its first call, and again after a failure. The agent puts its generation of the moment on every call: keys under
/// `job/` outlive it. While no generation runs, calls fail with `generation_over`.
class AgentStore final : public RequestStore {
 public:
  AgentStore(const Clock& clock, Path socket) : RequestStore{clock, Generation{}}, socket_{std::move(socket)} {}
  /// To the agent; lost where it cannot be reached.
  void tell(const Message& message);

 protected:
  Result<StoreReply> ask(StoreRequest request, Deadline deadline) override;
  [[nodiscard]] std::uint32_t rank() const override { return 0; }

 private:
  Result<void> connect(Deadline deadline);
  Result<void> send(const Message& message, Deadline deadline);
  Result<StoreReply> receive(std::uint64_t id, Deadline deadline);

  const Path socket_;
  Fd line_;
  MessageReader reader_;
  std::uint64_t last_id_ = 0;
};

}  // namespace elrun::inline v0::launcher
