#include "launcher/process/timer_pipe.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <boost/asio/buffer.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/process/file_timers.hpp"
#include "launcher/report/endings.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0::launcher {
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

namespace {

// Timers are times of day, as the protocol has it, and such a clock may be set: it is looked at this often.
constexpr Duration look_every = 1s;

// Of a worker's process group, or the worker itself. The number is held by `process` while it is judged: if it becomes
// another's in between, the signal is not sent.
bool kill_if_ours(pid_t pid, int signal, const std::function<bool(pid_t)>& is_worker_group) {
  const Fd process{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))};
  if (!process) return false;
  const pid_t group = ::getpgid(pid);
  if (group <= 1 || !is_worker_group(group)) return false;
  return ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) == 0;
}

class Pipe final : public TimerPipe {
 public:
  Pipe(asio::io_context& loop, const Clock& clock, const Log& log, Path path, Fd pipe, std::function<bool(pid_t)> is_worker_group)
      : clock_{clock},
        log_{log},
        path_{std::move(path)},
        is_worker_group_{std::move(is_worker_group)},
        pipe_{loop, pipe.give_up()},
        timer_{loop} {
    read();
  }
  ~Pipe() override { (void)::unlink(path_.c_str()); }

 private:
  [[nodiscard]] double wall() const { return static_cast<double>(clock_.wall_ns()) / 1e9; }

  void read() {
    pipe_.async_read_some(asio::buffer(chunk_), [this, alive = std::weak_ptr{alive_}](const ErrorCode& error, std::size_t count) {
      if (alive.expired() || error) return;
      for (const std::string& line : lines_.feed({chunk_.data(), count})) on_line(line);
      look();
      read();
    });
  }

  void on_line(const std::string& line) {
    const auto request = parse_timer(line);
    if (!request) return is_told_(log_, Level::warning, "a line in the timer file is not a timer request; it has no effect");
    if (timers_.set(*request)) return;
    timers_.keep([this](std::int64_t pid) { return is_worker_group_(::getpgid(static_cast<pid_t>(pid))); });
    if (!timers_.set(*request))
      is_told_(log_, Level::warning, fmt::format("more than {} timers at one time; further ones have no effect", timers_max));
  }

  void look() {
    for (const TimerKill& kill : timers_.expired(wall()))
      if (kill_if_ours(static_cast<pid_t>(kill.pid), kill.signal, is_worker_group_))
        log_.error(fmt::format("the timer `{}` of process {} expired: {} sent", kill.scope, kill.pid, signal_name(kill.signal)));
    const auto next = timers_.next();
    if (!next) return timer_.cancel(), void();
    const double left = std::clamp(*next - wall(), 0.001, std::chrono::duration<double>(look_every).count());
    timer_.expires_after(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(left)));
    timer_.async_wait([this, alive = std::weak_ptr{alive_}](const ErrorCode& error) {
      if (!alive.expired() && !error) look();
    });
  }

  const Clock& clock_;
  const Log& log_;
  const Path path_;
  const std::function<bool(pid_t)> is_worker_group_;
  asio::posix::stream_descriptor pipe_;
  asio::steady_timer timer_;
  std::array<char, 16384> chunk_{};
  TimerLines lines_;
  FileTimers timers_;
  LogIfChanged is_told_;
  std::shared_ptr<char> alive_ = std::make_shared<char>();  // tasks posted to the loop outlive this object
};

}  // namespace

Result<std::unique_ptr<TimerPipe>> TimerPipe::open(asio::io_context& loop, const Clock& clock, const Log& log, const Path& path,
                                                   std::function<bool(pid_t)> is_worker_group) {
  // A FIFO that an earlier agent left is made anew; any other file stays what it is.
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode)) (void)::unlink(path.c_str());
  if (::mkfifo(path.c_str(), 0600) != 0) return from_errno(errno, fmt::format("make the timer file {}", path.native()));
  // For writing as well: without a writer it would be at its end again and again.
  Fd pipe{::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW)};
  if (!pipe) {
    const Failure why = from_errno(errno, fmt::format("open the timer file {}", path.native()));
    (void)::unlink(path.c_str());
    return why;
  }
  return std::unique_ptr<TimerPipe>{std::make_unique<Pipe>(loop, clock, log, path, std::move(pipe), std::move(is_worker_group))};
}

}  // namespace elrun::inline v0::launcher
