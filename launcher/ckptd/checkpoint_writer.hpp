#pragma once
/// \file CheckpointWriter: the agent's hold on `elrun ckptd`, the process that writes checkpoints for the workers of this node.

#include <cstdint>
#include <memory>
#include <set>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/agent.hpp"
#include "launcher/process/child.hpp"
#include "lib/base/clock.hpp"
#include "lib/link/message.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the agent's loop. It listens at a socket in the agent's directory (mode 0700) and starts the process when the first worker connects there, with the
/// socket as its standard input: a job without asynchronous saves never has one. Its end is seen at once; the workers see it, too, by their connections. It is
/// started again when the next worker connects. One that ends soon after its start, or before it has worked on a save, may not be able to live: workers that wait for it are turned away, and the next one is
/// started later each time, up to about a minute. It ends with the agent, and with the guard where the agent is killed.
class CheckpointWriter {
 public:
  struct Setting {
    const AgentSetting& agent;
    Path agent_socket;
  };
  CheckpointWriter(boost::asio::io_context& loop, const Guard& guard, const Clock& clock, const Log& log, Setting setting);
  /// Without it saves block, and workers say why.
  Result<void> listen();
  [[nodiscard]] bool is(pid_t pid) const { return child_ && child_->pid() == pid; }
  /// Whether this message on the agent's socket is of that process, by the kernel's word on who connected.
  bool takes(std::uint64_t connection, const Message& message);
  void hung_up(std::uint64_t connection) { connections_.erase(connection); }
  /// The loop has ended: kills the process. It is not waited for where its storage hangs.
  void clear();

 private:
  void wait_for_worker();
  void start();
  void ended(Ending ending);
  void turn_away();

  boost::asio::io_context& loop_;
  const Guard& guard_;
  const Clock& clock_;
  const Log& log_;
  const Setting setting_;
  boost::asio::posix::stream_descriptor listener_;
  boost::asio::steady_timer pause_;
  std::unique_ptr<Child> child_;
  Instant started_{};
  bool has_worked_ = false;              // on a save, for which it comes to the agent
  unsigned quick_ends_ = 0;              // one after the other, each soon after its start or before any work
  std::set<std::uint64_t> connections_;  // of the process, to the agent
};

}  // namespace elrun::inline v0::launcher
