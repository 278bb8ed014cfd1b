#include "launcher/report/event_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration answer_limit = 1s;
constexpr std::size_t waiting_bytes_max = std::size_t{1} << 20;

}  // namespace

struct EventLog::File {
  explicit File(Path at) : path{std::move(at)} {}
  const Path path;
  std::mutex mutex;  // held by a call
  Fd fd;
  bool is_torn = false;            // its last line
  std::optional<Failure> problem;  // the first one; what could not be written is gone

  Result<void> write(const std::string& text) {
    const std::lock_guard lock{mutex};
    auto done = try_to_write(text);
    if (!done.ok() && !problem) problem = done.failure();
    return done;
  }

 private:
  Result<void> try_to_write(const std::string& text) {
    if (!fd) fd = Fd{::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644)};
    if (!fd) return from_errno(errno, fmt::format("open --event-log {}", path.string()));
    if (text.empty()) return {};
    // After a line that the disk took in part, it begins one of its own.
    const std::string bytes = (is_torn ? "\n" : "") + text;
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t written = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return from_errno(errno, fmt::format("write --event-log {}", path.string()));
      done += static_cast<std::size_t>(written);
      is_torn = bytes[done - 1] != '\n';
    }
    return {};
  }
};

EventLog::EventLog(Path path, const Log& log)
    : path_{std::move(path)}, log_{log}, file_{std::make_shared<File>(path_)}, place_{answer_limit} {
  write({});
}

EventLog::~EventLog() {
  constexpr Duration look = 10ms;
  for (Duration waited{}; place_.hangs() && waited < answer_limit; waited += look) std::this_thread::sleep_for(look);
  if (!place_.hangs()) write(std::move(waiting_));
  if (place_.hangs()) log_.warning(fmt::format("--event-log {} does not answer: the last events may be missing there", path_.string()));
}

void EventLog::append(const std::string& line) {
  if (waiting_.size() + line.size() + 1 <= waiting_bytes_max) {
    waiting_ += line + '\n';
  } else if (!std::exchange(lost_, true)) {
    log_.warning(fmt::format("--event-log {} still does not answer: events are missing there", path_.string()));
  }
  if (!place_.hangs()) write(std::exchange(waiting_, {}));
}

void EventLog::write(std::string text) {
  if (!place_.ask<Result<void>>([file = file_, text = std::move(text)] { return file->write(text); }) && !std::exchange(hung_, true))
    log_.warning(fmt::format("--event-log {} has not answered within {}; the job goes on, and events are written there once it answers",
                             path_.string(), for_people(answer_limit)));
  tell_problem();
}

/// Also that of a call which hung, and came back since.
void EventLog::tell_problem() {
  if (place_.hangs()) return;
  const std::lock_guard lock{file_->mutex};
  if (file_->problem && !std::exchange(failed_, true))
    log_.warning(message(*file_->problem) + "; the job goes on, and events are missing there");
}

}  // namespace elrun::inline v0::launcher
