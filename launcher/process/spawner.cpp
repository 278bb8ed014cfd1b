// The child of a vfork shares this process's memory until it executes, and the calling thread sleeps meanwhile: it may
// only make system calls. That is safe beside gRPC's threads, where fork is not, and costs nothing however large the
// agent is. An exec that reads from a storage whose server is away does not return, so the thread that sleeps is none that anybody waits for. There are as many of
// these threads as execs have been under way at one time: one, as a rule. None ever ends, and what they share is never destroyed.
//
// The child has a descriptor table of its own, and closes there what the program does not get, before the exec and not by it: an exec that hangs may outlive the agent, and
// the guard's line or a listening socket that it still had would live on with it. A close that waits for a storage counts as part of the exec.
//
// Two words at most come by a pipe. The process says its number once the guard knows it, before it touches any file; then its errno, should the exec fail. The thread says
// 0 when the exec is over, whatever became of it; or the negative errno of a vfork that failed. (The thread sanitizer makes a fork of a vfork. There an exec counts as
// over at once, and the exit code alone says that it has failed.)
#include "launcher/process/spawner.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "launcher/process/descriptors.hpp"
#include "launcher/process/detached_call.hpp"
#include "launcher/report/evidence.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration exec_wait = 100ms;        // the loop's, for an ordinary exec; most take less than 1 ms
constexpr Duration exec_wait_besides = 2ms;  // while another one hangs: many workers' may

struct Prepared {
  std::string path;
  std::vector<std::string> arguments, variables;
  std::vector<char*> argv, envp;
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> cpus{nullptr, [](cpu_set_t* set) { CPU_FREE(set); }};  // none: as the agent
  std::size_t cpus_bytes = 0;
  int guard_line = -1;
  int out = -1, err = -1, in = -1;  // -1: inherited
  const rlimit* descriptors = nullptr;
  Fd line;         // closed by a successful exec
  pid_t pid = -1;  // once the exec is over
};

constexpr int line_of_child = 3;  // behind the standard ones, so that all above it can be closed

// Not inlined: what vfork's child changes on the stack belongs to a frame that nobody else uses.
[[gnu::noinline]] pid_t spawn(const Prepared& what) {
  const pid_t pid = ::vfork();
  if (pid != 0) return pid;
  ::setsid();
  // In case the guard was killed as well (`pkill elrun`): the worker itself, not what it starts, dies with the agent.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  register_with_guard(what.guard_line);
  ::close(what.guard_line);  // in this process's own table, as all that follows
  const int self = ::getpid();
  [[maybe_unused]] const ssize_t said = ::write(what.line.get(), &self, sizeof self);
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now {};
    if (number == SIGHUP && ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) continue;  // nohup
    ::sigaction(number, &plain, nullptr);
  }
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (what.cpus) ::sched_setaffinity(0, what.cpus_bytes, what.cpus.get());  // refused: those CPUs have gone since
  ::setrlimit(RLIMIT_NOFILE, what.descriptors);
  if (what.in >= 0) ::dup2(what.in, 0);
  if (what.out >= 0) ::dup2(what.out, 1);
  if (what.err >= 0) ::dup2(what.err, 2);
  ::dup3(what.line.get(), line_of_child, O_CLOEXEC);  // where it is that already, it stays as it is
  if (::syscall(SYS_close_range, unsigned{line_of_child + 1}, ~0u, 0u) != 0)
    for (int fd = line_of_child + 1; fd < 65536; ++fd) ::close(fd);  // before Linux 5.9
  ::execve(what.path.c_str(), what.argv.data(), what.envp.data());
  const int error = errno;
  ::sigprocmask(SIG_SETMASK, &all, nullptr);  // where nobody listens any more, its exit code tells it, and not SIGPIPE
  [[maybe_unused]] const ssize_t ignored = ::write(line_of_child, &error, sizeof error);
  ::_exit(error == ENOENT || error == ENOTDIR ? exit_code::not_found : exit_code::cannot_execute);
}

Failure cannot_start(const std::string& path, int error) {
  Failure failure = from_errno(error, fmt::format("start a process for {}", path));
  if (const std::string limit = limit_behind(error, CgroupWatch{}.limits()); !limit.empty()) failure.what += "; " + limit;
  return failure;
}

std::unique_ptr<Prepared> prepared(const Guard& guard, const Execution& execution, Fd line) {
  auto all = std::make_unique<Prepared>();
  all->path = execution.path;
  all->arguments = execution.arguments;
  for (const auto& [name, value] : execution.environment) all->variables.push_back(fmt::format("{}={}", name, value));
  for (std::string& a : all->arguments) all->argv.push_back(a.data());
  for (std::string& v : all->variables) all->envp.push_back(v.data());
  all->argv.push_back(nullptr);
  all->envp.push_back(nullptr);
  if (!execution.cpus.empty()) {
    const int limit = static_cast<int>(*execution.cpus.rbegin()) + 1;
    all->cpus.reset(CPU_ALLOC(limit));
    all->cpus_bytes = CPU_ALLOC_SIZE(limit);
    CPU_ZERO_S(all->cpus_bytes, all->cpus.get());
    for (const std::uint32_t cpu : execution.cpus) CPU_SET_S(cpu, all->cpus_bytes, all->cpus.get());
  }
  all->guard_line = guard.line();
  all->out = execution.out, all->err = execution.err, all->in = execution.in;
  all->descriptors = &descriptors_at_start();
  all->line = std::move(line);
  return all;
}

std::optional<int> next_word(int line) {
  int word = 0;
  ssize_t got = 0;
  do got = ::read(line, &word, sizeof word);
  while (got < 0 && errno == EINTR);
  return got == sizeof word ? std::optional{word} : std::nullopt;
}

bool has_word(int line, Duration wait) {
  pollfd look{line, POLLIN, 0};
  const SignalsBlocked blocked;
  return ::poll(&look, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(wait).count())) > 0;
}

}  // namespace

// Made when it is first needed, and never destroyed.
class Spawner {
 public:
  static Spawner& instance() {
    static Spawner& only = *new Spawner;  // NOLINT(bugprone-unhandled-exception-at-new)
    return only;
  }

  /// How long the loop waits for the next exec.
  [[nodiscard]] Duration wait() {
    const std::lock_guard lock{mutex_};
    return idle_ < threads_ ? exec_wait_besides : exec_wait;
  }

  /// \throws std::system_error where no thread can be started.
  void start(std::shared_ptr<Prepared> what, std::shared_ptr<ExecState> state) {
    std::unique_lock lock{mutex_};
    if (idle_ == 0) {
      quiet_thread([this] { work(); }).detach();
      ++threads_, ++idle_;
    }
    --idle_;  // one of them will take it
    orders_.push_back({std::move(what), std::move(state)});
    lock.unlock();
    there_is_one_.notify_one();
  }

  void set_left(pid_t pid, bool left) {
    const std::lock_guard lock{mutex_};
    if (left) left_.insert(pid);
    else left_.erase(pid);
  }
  [[nodiscard]] bool is_left(pid_t pid) {
    const std::lock_guard lock{mutex_};
    return left_.contains(pid);
  }

 private:
  struct Order {
    std::shared_ptr<Prepared> what;
    std::shared_ptr<ExecState> state;
  };

  [[noreturn]] void work() {
    while (true) {
      std::unique_lock lock{mutex_};
      there_is_one_.wait(lock, [this] { return !orders_.empty(); });
      const Order order = std::move(orders_.front());
      orders_.pop_front();
      lock.unlock();
      make(order);
    }
  }

  void make(const Order& order) {
    Prepared& what = *order.what;
    what.pid = spawn(what);
    const int word = what.pid < 0 ? -errno : 0;
    collect_if_left(order);
    {
      const std::lock_guard lock{mutex_};
      ++idle_;  // before the loop knows: it may have the next one
    }
    // A process that was killed before it could say its number has said nothing: then this is the first word.
    [[maybe_unused]] const ssize_t said = ::write(what.line.get(), &word, sizeof word);
    what.line = Fd{};
  }

  void collect_if_left(const Order& order) {
    const std::lock_guard lock{order.state->mutex_};
    order.state->is_over_ = true;
    if (!order.state->is_left_) return;
    while (::waitpid(order.what->pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    forget_in_guard(order.what->guard_line, order.what->pid);
    set_left(order.what->pid, false);
  }

  std::mutex mutex_;
  std::condition_variable there_is_one_;
  std::deque<Order> orders_;
  std::size_t threads_ = 0, idle_ = 0;
  std::set<pid_t> left_;  // by the loop, and not collected yet by their threads
};

bool ExecState::leave(pid_t pid) {
  const std::lock_guard lock{mutex_};
  is_left_ = !is_over_;
  if (is_left_) Spawner::instance().set_left(pid, true);
  return is_left_;
}

bool is_left(pid_t pid) { return Spawner::instance().is_left(pid); }

Result<Spawned> spawn_process(const Guard& guard, const Execution& execution) {
  if (!guard.has_room())
    return Failure{
        .code = Code::deadline_passed,
        .remedy = Remedy::fix_config,
        .what = fmt::format("start a process for {}: the guard of this agent's workers (process {}) reads nothing; was it stopped? "
                            "`kill -CONT {}` lets it go on",
                            execution.path, guard.pid(), guard.pid())};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return cannot_start(execution.path, errno);
  Fd line{ends[0]};
  const std::shared_ptr<Prepared> what = prepared(guard, execution, Fd{ends[1]});
  Spawned spawned;
  spawned.exec = std::make_shared<ExecState>();
  Spawner& spawner = Spawner::instance();
  const Duration wait = spawner.wait();
  try {
    spawner.start(what, spawned.exec);
  } catch (const std::system_error& error) {
    return cannot_start(execution.path, error.code().value());
  }
  const int first = next_word(line.get()).value_or(0);  // which waits for nothing but the kernel's own work
  if (first < 0) return cannot_start(execution.path, -first);
  spawned.pid = first > 0 ? first : what->pid;
  if (first == 0) {
    spawned.exec.reset();
  } else if (has_word(line.get(), wait)) {
    spawned.exec_error = next_word(line.get()).value_or(0);
    spawned.exec.reset();
  } else {
    spawned.exec_line = std::move(line);
    made_detached_call = true;
  }
  return spawned;
}

std::optional<int> exec_result(int exec_line) {
  if (!has_word(exec_line, Duration{0})) return {};
  return next_word(exec_line).value_or(0);
}

}  // namespace elrun::inline v0::launcher
