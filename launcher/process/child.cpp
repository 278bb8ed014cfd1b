#include "launcher/process/child.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "launcher/report/evidence.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration held_look_interval = 50ms;
constexpr int looks_before_told = 40;
constexpr Duration early_look_interval = 1ms;
constexpr int early_looks = 20;  // the first thread of a process that ends may be ahead of the others, whose end says how
constexpr std::size_t stat_max = 4096;
constexpr Duration exec_late = 5s;         // then somebody is told that the exec takes long
constexpr Duration exec_end_wait = 100ms;  // after SIGKILL, of a process whose exec hangs: most kernels let it end at once

pid_t tracer_of(pid_t pid) {
  std::ifstream file{fmt::format("/proc/{}/status", pid)};
  constexpr std::string_view key = "TracerPid:";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return static_cast<pid_t>(std::strtol(line.c_str() + key.size(), nullptr, 10));
  return 0;
}

Ending ending_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {.exit_code = info.si_status};
  return {.signal = info.si_status};
}

}  // namespace

Result<std::unique_ptr<Child>> Child::start(boost::asio::io_context& loop, const Guard& guard, const Execution& execution,
                                            std::function<void(Ending)> ended) {
  auto spawned = spawn_process(guard, execution);
  if (!spawned) return std::move(spawned).failure();
  const pid_t pid = spawned->pid;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    const Failure failure = from_errno(errno, fmt::format("watch process {}", pid));
    ::kill(-pid, SIGKILL);
    if (spawned->exec && spawned->exec->leave(pid)) return failure;
    guard.collect(pid);
    return failure;
  }
  return std::unique_ptr<Child>{new Child{loop, guard, execution, *std::move(spawned), pidfd, std::move(ended)}};
}

Child::Child(boost::asio::io_context& loop, const Guard& guard, const Execution& execution, Spawned spawned, int pidfd,
             std::function<void(Ending)> ended)
    : guard_{guard},
      pid_{spawned.pid},
      path_{execution.path},
      watch_{loop, pidfd},
      look_again_{loop},
      early_look_{loop},
      exec_{std::move(spawned.exec)},
      exec_line_{loop},
      exec_timer_{loop},
      ended_{std::move(ended)} {
  watch();
  if (spawned.exec_error != 0) exec_is_over(spawned.exec_error);
  if (!exec_) return;
  exec_line_.assign(spawned.exec_line.give_up());
  exec_line_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (!error) learn_exec();
  });
  look_at_exec(std::min(exec_late, execution.exec_limit), execution.exec_limit);
}

void Child::learn_exec() {
  if (!exec_line_.is_open()) return;
  if (const auto result = exec_result(exec_line_.native_handle())) exec_is_over(*result);
}

void Child::exec_is_over(int error) {
  exec_.reset();
  exec_timer_.cancel();
  exec_line_.close();
  if (error != 0) never_ran_ = message(from_errno(error, fmt::format("execute {}", path_)));
}

void Child::look_at_exec(Duration after, Duration limit) {
  exec_timer_.expires_after(after);
  exec_timer_.async_wait([this, limit](const boost::system::error_code& cancelled) {
    if (cancelled || is_abandoned_) return;
    learn_exec();
    if (!exec_) return;
    const bool is_first = !std::exchange(exec_is_told_, true);
    if (!is_first || limit <= exec_late) return give_up_exec(limit);
    if (exec_is_late_) exec_is_late_(limit);
    look_at_exec(limit - exec_late, limit);
  });
}

// Its end is known when it ends; a call to a storage that does not answer may keep it from that.
void Child::give_up_exec(Duration limit) {
  exec_line_.close();
  never_ran_ = fmt::format("the exec of {} has not returned in {}: its storage does not answer", path_, for_people(limit));
  signal(SIGKILL);
  tell({.exit_code = exit_code::cannot_execute});
}

void Child::watch() {
  watch_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;  // the child is being destroyed
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      is_gone_ = true;
      learn_exec();
      exec_.reset();
      tell(ending_of(info));
      if (gone_) gone_();
      return;
    }
    // It has ended, and a debugger that holds it has not let go of it yet.
    if (++looks_ == looks_before_told && held_) held_(tracer_of(pid_));
    look_again_.expires_after(held_look_interval);
    look_again_.async_wait([this](const boost::system::error_code& cancelled) {
      if (!cancelled) watch();
    });
  });
}

void Child::tell(Ending ending) {
  early_look_.cancel();
  if (const auto ended = std::exchange(ended_, nullptr)) ended(ending);
}

void Child::expect_end() {
  early_looks_ = 0;
  look_early();
}

void Child::look_early() {
  if (!ended_ || is_abandoned_) return;
  const auto stat = read_regular_file(fmt::format("/proc/{}/stat", pid_), stat_max);
  if (const auto ending = ending_under_way(stat.value_or(""))) {
    if (ending->signal == SIGKILL) tell(*ending);
    return;
  }
  if (++early_looks_ >= early_looks) return;
  early_look_.expires_after(early_look_interval);
  early_look_.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled) look_early();
  });
}

void Child::abandon() {
  signal(SIGKILL);
  is_abandoned_ = true;
  watch_.cancel();
  look_again_.cancel();
  early_look_.cancel();
  exec_timer_.cancel();
  exec_line_.close();
}

bool Child::end_within(Duration wait) {
  signal(SIGKILL);
  if (const bool ended = ends_within(wait)) return ended;
  abandon();  // or a debugger holds it
  return false;
}

bool Child::ends_within(Duration wait) {
  pollfd look{watch_.native_handle(), POLLIN, 0};
  siginfo_t info{};
  const SignalsBlocked blocked;  // the end of another child does not cut the wait short
  return ::poll(&look, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count())) > 0 &&
         ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

// Waits for nobody but the kernel: after SIGKILL a process ends. One whose exec hangs may not.
Child::~Child() {
  if (is_abandoned_) return;
  signal(SIGKILL);
  if (exec_ && !ends_within(exec_end_wait) && exec_->leave(pid_)) return;
  guard_.collect(pid_);
}

// Until its exec is over the process shares this one's memory, and before Linux 5.16 a dump of its core ended all that share it.
void Child::signal(int number) const {
  const bool dumps_core = number == SIGABRT || number == SIGQUIT || number == SIGXCPU || number == SIGXFSZ || number == SIGSYS ||
                          number == SIGTRAP || number == SIGILL || number == SIGFPE || number == SIGBUS || number == SIGSEGV;
  ::kill(-pid_, exec_ && dumps_core ? SIGKILL : number);
}

}  // namespace elrun::inline v0::launcher
