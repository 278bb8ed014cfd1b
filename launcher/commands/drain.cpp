// How a node leaves is its agent's business: it is asked by the signal that a kubelet would send, and its process is watched until it has ended.
#include "launcher/commands/drain.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <vector>

#include <fmt/format.h>

#include "launcher/http/ask.hpp"
#include "launcher/http/pages.hpp"
#include "launcher/output/print_out.hpp"
#include "launcher/process/agent_directory.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration answer_timeout = 5s;  // of each agent, however short the time to leave is: an answer takes it longer on a busy machine

// The process that listens there, by its number here: 0 for one of another container, whose own number may be anybody's here.
Result<std::int64_t> listener_at(const SocketAddress& where) {
  ELRUN_TRY_ASSIGN(const Fd socket, connect_begin(where));
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return from_errno(errno, fmt::format("ask who listens at {}", to_string(where)));
  return who.pid;
}

std::string named(const AgentAnswer& agent) { return fmt::format("agent {} (run {}, node {})", agent.pid, agent.run, agent.node); }

struct Leaving {
  AgentAnswer agent;
  Fd process;
};

class Drain {
 public:
  Drain(const DrainOptions& options, const Clock& clock)
      : options_{options}, clock_{clock}, began_{clock.now()}, deadline_{Deadline::after(began_, options.timeout)} {}

  void ask_to_leave(const SocketAddress& where) {
    const auto reply = ask(where, {.path = "/statusz"}, answer_timeout, clock_);
    // An agent that was killed together with its guard leaves its directory behind.
    if (!reply.ok() && has_no_listener(reply.failure())) return;
    if (!reply.ok()) return fail(fmt::format("{}; it is not asked to leave", message(reply.failure())));
    const auto agent = agent_answer(reply->body);
    if (reply->status != 200 || !agent) return fail(fmt::format("{} is no agent of elrun", to_string(where)));
    const auto processes = processes_in(reply->body);
    if (options_.pid && std::find(processes.begin(), processes.end(), *options_.pid) == processes.end()) return;
    const auto listener = listener_at(where);
    if (!listener.ok() && has_no_listener(listener.failure())) return;  // it has gone since
    if (!listener.ok()) return fail(fmt::format("{}; it is not asked to leave", message(listener.failure())));
    if (*listener != agent->pid)
      return say(
          fmt::format("{} runs in another container, and is not asked to leave: `elrun drain` in that container asks it", named(*agent)));
    found_ = true;
    const auto left_already = [&] { say(fmt::format("{} has left already", named(*agent))); };
    Fd process{static_cast<int>(::syscall(SYS_pidfd_open, agent->pid, 0))};
    if (!process && errno == ESRCH) return left_already();
    if (!process) return fail(message(from_errno(errno, fmt::format("watch {}", named(*agent)))));
    // Whoever answers under this number now is the process that is watched: the number cannot become another's any more.
    const Deadline soon = Deadline::after(clock_.now(), answer_timeout);
    const auto again = ask(where, {.path = "/statusz"}, answer_timeout, clock_);
    const auto same = again.ok() ? agent_answer(again->body) : std::nullopt;
    // No answer does not mean that it has left: the process says that. One that is ending closes its sockets a moment before it is gone.
    if (!same && !has_ended(process.get(), soon))
      return fail(fmt::format("{} is not asked to leave: {}", named(*agent),
                              again.ok() ? fmt::format("{} is no agent of elrun", to_string(where)) : message(again.failure())));
    if (!same || same->pid != agent->pid) return left_already();
    // A second signal would end its workers at once, and with them the checkpoint that they are saving.
    if (!same->leaving && ::syscall(SYS_pidfd_send_signal, process.get(), SIGTERM, nullptr, 0) != 0 && errno != ESRCH)
      return fail(message(from_errno(errno, fmt::format("ask {} to leave", named(*agent)))));
    say(fmt::format("{} {}; waiting for {:g} s at most", named(*agent), same->leaving ? "is leaving already" : "was asked to leave",
                    seconds(options_.timeout)));
    leaving_.push_back({*same, std::move(process)});
  }

  void fail(std::string_view why) {
    std::fflush(stdout);
    fmt::print(stderr, "elrun: drain: {}\n", why);
    has_failed_ = true;
  }

  /// Waits for all, and returns the exit code.
  [[nodiscard]] int end() {
    if (!found_ && !has_failed_)
      fail(options_.pid ? fmt::format("no agent of this user on this machine has the process {}", *options_.pid)
                        : "no agent of this user runs on this machine; XDG_RUNTIME_DIR must be as it was when the agent started");
    for (const Leaving& one : leaving_) {
      if (has_ended(one.process.get(), deadline_))
        say(fmt::format("{} has left after {:.1f} s", named(one.agent), seconds(clock_.now() - began_)));
      else
        fail(fmt::format("{} is still there after {:g} s; its log says what it waits for, and --shutdown_timeout when it ends its workers",
                         named(one.agent), seconds(options_.timeout)));
    }
    return has_failed_ ? exit_code::unavailable : 0;
  }

 private:
  static void say(std::string_view what) {
    print_out(fmt::format("{}\n", what));
    std::fflush(stdout);
  }

  /// Waits until the deadline for it.
  [[nodiscard]] bool has_ended(int process, Deadline deadline) const {
    for (;;) {
      pollfd p{process, POLLIN, 0};
      const Duration left = std::min<Duration>(deadline.left(clock_.now()), 3600s);
      const int got = ::poll(&p, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
      if (got > 0) return true;
      if (deadline.passed(clock_.now())) return false;
    }
  }

  const DrainOptions& options_;
  const Clock& clock_;
  const Instant began_;
  const Deadline deadline_;
  std::vector<Leaving> leaving_;
  bool found_ = false, has_failed_ = false;
};

}  // namespace

int run_drain(const DrainOptions& options, const Variables& environment, const Clock& clock) {
  Drain drain{options, clock};
  for (const Path& directory : agent_directories(environment))
    if (const auto address = unix_address(directory / status_socket_name); address.ok()) drain.ask_to_leave(*address);
  return drain.end();
}

}  // namespace elrun::inline v0::launcher
