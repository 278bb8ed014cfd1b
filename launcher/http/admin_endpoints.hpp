#pragma once
/// \file AdminEndpoints: what shows an agent from outside. Keeps the job history, and answers on a socket in the agent's directory
/// and, when asked to, on a port.

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>

#include "launcher/http/exposition.hpp"
#include "launcher/http/http_listener.hpp"
#include "launcher/http/pages.hpp"
#include "launcher/options/admin_options.hpp"
#include "launcher/process/timer_pipe.hpp"
#include "launcher/report/steady_times.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"
#include "lib/base/log.hpp"

namespace elrun::inline v0::launcher {

/// Lives on the agent's loop.
class AdminEndpoints {
 public:
  AdminEndpoints(boost::asio::io_context& loop, const Clock& clock, const Log& log, AgentIdentity agent, std::function<bool()> coordinates);
  /// Fails only when a port that is needed cannot be opened; what else is missing is logged, and the job goes on without.
  Result<void> open(const AdminOptions& options, const Path& directory);
  /// `elrun status` and `elrun drain` find this agent in this directory, and in no other.
  void open_socket(const Path& directory);
  /// torch's watchdog, when it is asked for: what workers find in their environment as TORCHELASTIC_TIMER_FILE. Before they
  /// start.
  void open_timers(const AdminOptions& options, const Path& directory, Variables& environment, std::function<bool(pid_t)> is_worker_group);
  void saw(const Event& event, std::span<const Action> actions, const Supervisor& supervisor);
  [[nodiscard]] const NodeRecord& record() const { return history_.record(); }

 private:
  [[nodiscard]] HttpReply answer(const HttpRequest& request) const;

  boost::asio::io_context& loop_;
  const Clock& clock_;
  const Log& log_;
  const AgentIdentity agent_;
  const std::function<bool()> coordinates_;
  const double started_at_;  // seconds since 1970
  JobHistory history_;
  struct Kept {
    Instant made{};
    std::optional<HttpReply> reply;
  };
  mutable std::map<Exposition, Kept> kept_metrics_;
  mutable SteadyTimes times_;
  std::unique_ptr<HttpListener> socket_, port_;
  std::unique_ptr<TimerPipe> timers_;
};

}  // namespace elrun::inline v0::launcher
