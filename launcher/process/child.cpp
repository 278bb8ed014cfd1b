// The child of a vfork shares this process's memory until it executes, and the calling thread sleeps meanwhile: it may
// only make system calls. That is safe beside gRPC's threads, where fork is not, and costs nothing however large the
// agent is.
#include "launcher/process/child.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "launcher/process/descriptors.hpp"
#include "launcher/report/evidence.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration held_look_interval = 50ms;
constexpr int looks_before_told = 40;
constexpr Duration early_look_interval = 1ms;
constexpr int early_looks = 20;  // the first thread of a process that ends may be ahead of the others, whose end says how
constexpr std::size_t stat_max = 4096;

pid_t tracer_of(pid_t pid) {
  std::ifstream file{fmt::format("/proc/{}/status", pid)};
  constexpr std::string_view key = "TracerPid:";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) return static_cast<pid_t>(std::strtol(line.c_str() + key.size(), nullptr, 10));
  return 0;
}

struct Prepared {
  const char* path;
  char* const* arguments;
  char* const* environment;
  int guard_line;
  int out, err, in;       // -1: inherited
  const cpu_set_t* cpus;  // none: as the agent
  std::size_t cpus_bytes;
  const rlimit* descriptors;
  int error_pipe;  // closed by a successful exec, else it carries the errno
};

// Not inlined: what vfork's child changes on the stack belongs to a frame that nobody else uses.
[[gnu::noinline]] pid_t spawn(const Prepared& what) {
  const pid_t pid = ::vfork();
  if (pid != 0) return pid;
  ::setsid();
  // In case the guard was killed as well (`pkill elrun`): the worker itself, not what it starts, dies with the agent.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  register_with_guard(what.guard_line);
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now {};
    if (number == SIGHUP && ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) continue;  // nohup
    ::sigaction(number, &plain, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (what.cpus != nullptr) ::sched_setaffinity(0, what.cpus_bytes, what.cpus);  // refused: those CPUs have gone since
  ::setrlimit(RLIMIT_NOFILE, what.descriptors);
  if (what.in >= 0) ::dup2(what.in, 0);
  if (what.out >= 0) ::dup2(what.out, 1);
  if (what.err >= 0) ::dup2(what.err, 2);
  if (::syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) != 0)
    for (int fd = 3; fd < 65536; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // before Linux 5.11
  ::execve(what.path, what.arguments, what.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t ignored = ::write(what.error_pipe, &error, sizeof error);
  ::_exit(error == ENOENT || error == ENOTDIR ? exit_code::not_found : exit_code::cannot_execute);
}

Failure cannot_start(const std::string& path, int error) {
  Failure failure = from_errno(error, fmt::format("start a process for {}", path));
  if (const std::string limit = limit_behind(error, CgroupWatch{}.limits()); !limit.empty()) failure.what += "; " + limit;
  return failure;
}

Ending ending_of(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {.exit_code = info.si_status};
  return {.signal = info.si_status};
}

}  // namespace

Result<std::unique_ptr<Child>> Child::start(boost::asio::io_context& loop, const Guard& guard, const Execution& execution,
                                            std::function<void(Ending)> ended) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : execution.environment) variables.push_back(fmt::format("{}={}", name, value));
  std::vector<char*> arguments, environment;
  for (const std::string& a : execution.arguments) arguments.push_back(const_cast<char*>(a.c_str()));
  for (const std::string& v : variables) environment.push_back(const_cast<char*>(v.c_str()));
  arguments.push_back(nullptr);
  environment.push_back(nullptr);

  const int cpu_limit = execution.cpus.empty() ? 0 : static_cast<int>(*execution.cpus.rbegin()) + 1;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> cpus{cpu_limit > 0 ? CPU_ALLOC(cpu_limit) : nullptr,
                                                              [](cpu_set_t* set) { CPU_FREE(set); }};
  const std::size_t cpus_bytes = CPU_ALLOC_SIZE(cpu_limit);
  if (cpus) {
    CPU_ZERO_S(cpus_bytes, cpus.get());
    for (const std::uint32_t cpu : execution.cpus) CPU_SET_S(cpu, cpus_bytes, cpus.get());
  }

  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return cannot_start(execution.path, errno);
  const Fd reading{ends[0]};
  Fd writing{ends[1]};
  // A signal that came to the child before its exec would run this process's handlers in this process's memory.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = spawn({execution.path.c_str(), arguments.data(), environment.data(), guard.line(), execution.out, execution.err,
                           execution.in, cpus.get(), cpus_bytes, &descriptors_at_start(), writing.get()});
  const int error = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  writing = Fd{};
  int exec_error = 0;
  if (::read(reading.get(), &exec_error, sizeof exec_error) != sizeof exec_error) exec_error = 0;
  if (pid < 0) return cannot_start(execution.path, error);
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    const Failure failure = from_errno(errno, fmt::format("watch process {}", pid));
    ::kill(-pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    guard.forget(pid);
    return failure;
  }
  return std::unique_ptr<Child>{new Child{loop, guard, pid, pidfd, exec_error, std::move(ended)}};
}

Child::Child(boost::asio::io_context& loop, const Guard& guard, pid_t pid, int pidfd, int exec_error, std::function<void(Ending)> ended)
    : guard_{guard},
      pid_{pid},
      exec_error_{exec_error},
      watch_{loop, pidfd},
      look_again_{loop},
      early_look_{loop},
      ended_{std::move(ended)} {
  watch();
}

void Child::watch() {
  watch_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;  // the child is being destroyed
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      is_gone_ = true;
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
}

bool Child::end_within(Duration wait) {
  signal(SIGKILL);
  pollfd look{watch_.native_handle(), POLLIN, 0};
  siginfo_t info{};
  const SignalsBlocked blocked;  // the end of another child does not cut the wait short
  const bool ended = ::poll(&look, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count())) > 0 &&
                     ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  if (!ended) abandon();  // or a debugger holds it
  return ended;
}

// Waits for nobody but the kernel: after SIGKILL a process ends.
Child::~Child() {
  if (is_abandoned_) return;
  signal(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  guard_.forget(pid_);
}

void Child::signal(int number) const { ::kill(-pid_, number); }

}  // namespace elrun::inline v0::launcher
