// A teed stream takes two steps, on two threads. The collector reads the worker's pipe and writes the file; it never
// touches the terminal. A console writes to the terminal, line by line, what it reads back from the file; it may stand
// still for hours, and then goes on where it was. So a stream's memory is bounded, and nothing is lost or held up, while
// its file can be written. While it cannot, the bytes go through memory, and the pipe is left alone when that is full.
//
// The threads share nothing with the loop but what is in Threads. They are never joined: a write to a terminal that
// nobody reads may not return. They end by themselves, or with the process.
#include "launcher/output/threads.hpp"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>
#include <boost/asio/post.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::size_t chunk_bytes = std::size_t{256} << 10;       // read at once, and shown at once
constexpr std::size_t write_bytes = std::size_t{64} << 10;        // written to a terminal at once: progress is seen in between
constexpr std::size_t memory_bytes_max = std::size_t{1} << 20;    // of a stream without a file, before its worker is held up
constexpr Duration file_tries_every = 1s;                         // a disk that gets room byte by byte has few gaps told in its files
constexpr int drain_reads_max = 16;                               // a process that goes on writing after its worker's end is not waited for
constexpr std::size_t own_bytes_max = std::size_t{1} << 20;       // of elrun's own lines that wait for the terminal
constexpr std::size_t own_wait_bytes_max = std::size_t{1} << 20;  // of workers' bytes that they wait for

// Writes all of `bytes`, or returns how many before the error that is in errno.
std::size_t write_all(int fd, std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = ::write(fd, bytes.data() + done, std::min(bytes.size() - done, write_bytes));
    if (wrote > 0) {
      done += static_cast<std::size_t>(wrote);
    } else if (wrote < 0 && errno == EAGAIN) {  // another program that shares the terminal has made it non-blocking
      pollfd room{fd, POLLOUT, 0};
      ::poll(&room, 1, 1000);
    } else if (wrote == 0 || errno != EINTR) {
      break;
    }
  }
  return done;
}

// The loop handles signals, and a child between vfork and exec must not be disturbed.
template <class Body>
void start_thread(Body body) {
  quiet_thread(std::move(body)).detach();
}

}  // namespace

void Output::Threads::post(std::function<void()> what) {
  const std::lock_guard lock{loop_mutex_};
  if (loop_ != nullptr) asio::post(*loop_, std::move(what));
}

void Output::Threads::warn(std::string text) {
  const std::lock_guard lock{loop_mutex_};
  if (loop_ != nullptr) asio::post(*loop_, [log = log_, text = std::move(text)] { log->warning(text); });
}

void Output::Threads::leave_loop() {
  const std::lock_guard lock{loop_mutex_};
  loop_ = nullptr;
}

bool Output::Threads::own_is_next(const Console& console) {
  return !console.own.empty() && (console.gone >= console.own.front().after || console.arrived - console.gone > own_wait_bytes_max);
}

// A part that is not taken is lost on the console, and the files go on. The next one is tried all the same: the disk that elrun's output goes to
// may have room by then. It begins a line of its own. A terminal that is gone takes none, and nobody is there to be told.
void Output::Threads::show(Console& console, std::string_view bytes) {
  for (std::string_view part; !bytes.empty(); bytes.remove_prefix(part.size())) {
    part = bytes.substr(0, write_bytes);
    if (console.lost > 0 && console.in_line && write_all(console.fd, "\n") == 1) console.in_line = false;
    const bool is_torn = console.lost > 0 && console.in_line;
    const std::size_t wrote = is_torn ? 0 : write_all(console.fd, part);
    if (wrote > 0) console.in_line = part[wrote - 1] != '\n';
    if (wrote < part.size()) console.lost += part.size() - wrote, console.lost_by = errno;
    else if (const std::string text = take_loss(console); !text.empty()) warn(text);
    console.moved += part.size();
  }
}

// What is said of the bytes that it did not take; empty: it took all.
std::string Output::Threads::take_loss(Console& console) {
  const std::uint64_t lost = std::exchange(console.lost, 0);
  if (lost == 0) return {};
  return fmt::format("{}: {} bytes are missing there",
                     message(from_errno(console.lost_by, console.fd == 1 ? "write standard output" : "write standard error")), lost);
}

// What was lost to the end: both consoles are idle. A reader that went away has all that it wanted.
std::vector<std::string> Output::Threads::take_losses() {
  std::vector<std::string> all;
  for (Console* console : {&out_, &err_}) {
    const std::lock_guard lock{console->mutex};
    if (console->lost_by == EPIPE) continue;
    if (std::string text = take_loss(*console); !text.empty()) all.push_back(std::move(text));
  }
  return all;
}

// What happened longer ago is shown first: an attempt begins on the terminal when the one before it is through.
Output::Threads::SourcePointer Output::Threads::next_of(const Console& console) {
  SourcePointer best;
  for (const SourcePointer& source : console.sources)
    if (source->has_news() && (!best || source->attempt < best->attempt)) best = source;
  return best;
}

void Output::Threads::run_console(Console& console) {
  std::string bytes, shown, filtered;
  std::unique_lock lock{console.mutex};
  while (!console.stopping) {
    if (own_is_next(console)) {
      const std::string own = std::move(console.own.front().text);
      console.own.pop_front();
      console.own_bytes -= own.size();
      console.busy = true;
      lock.unlock();
      show(console, own);
      lock.lock();
      console.busy = false;
      continue;
    }
    const SourcePointer source = next_of(console);
    if (!source) {
      if (console.when_idle && idle(console)) std::exchange(console.when_idle, nullptr)();
      console.news.wait(lock);
      continue;
    }
    const std::int64_t at = static_cast<std::int64_t>(source->taken) - source->shift;
    const std::size_t in_file = std::min<std::uint64_t>(source->written - source->taken, chunk_bytes);
    const bool makes_room = in_file == 0 && source->memory.size() >= memory_bytes_max;
    const bool last = in_file == 0 && source->memory.empty();
    if (in_file == 0) bytes = std::exchange(source->memory, {});
    else source->taken += in_file;
    console.gone += in_file > 0 ? in_file : bytes.size();
    // The worker that was shown comes last now.
    const auto place = std::find(console.sources.begin(), console.sources.end(), source);
    std::rotate(place, place + 1, console.sources.end());
    if (last) console.sources.pop_back();
    console.busy = last;  // not idle before its last line is out
    lock.unlock();
    const std::optional<int> lost = in_file == 0 ? std::nullopt : read_back(*source, at, in_file, bytes);
    shown.clear();
    filtered.clear();
    if (source->is_passed_on) shown.swap(bytes);
    else if (last) source->lines.end(shown, filtered);
    else source->lines.feed(bytes, shown, filtered);
    if (source->filtered && !filtered.empty()) write_all(source->filtered->get(), filtered);
    if (source->seen) show(console, shown);
    else ++console.moved;
    if (makes_room) resume(source);
    lock.lock();
    if (lost) tell_loss(*source, *lost);
    console.busy = false;
  }
}

// What cannot be read back has been in the file all the same. None: all was read. 0: some of it is not there any more; else what read() ended with.
std::optional<int> Output::Threads::read_back(const Source& source, std::int64_t at, std::size_t size, std::string& bytes) {
  bytes.resize(size);
  std::size_t done = 0;
  int error = 0;
  while (done < size) {
    const ssize_t got = ::pread(source.file.get(), bytes.data() + done, size - done, at + static_cast<std::int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && at >= 0) error = errno;
    if (got <= 0) break;  // else another program has truncated the file
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return done == size ? std::nullopt : std::optional{error};
}

// Under the console's mutex, as the next one.
void Output::Threads::tell_loss(Source& source, int error) {
  if (std::exchange(source.loss_told, true)) return;
  const std::string why = error == 0 ? fmt::format("another program has cut or extended {}", source.path.native())
                                     : message(from_errno(error, "read " + source.path.native()));
  warn(why + ": what the console had not shown of it by then is not shown");
}

// `count` bytes more are in the file, and it ended with them at `end`. Where they do not follow those before them another program has cut the file
// (`truncate`, logrotate's copytruncate), or has written to it. What comes from now on is found all the same.
void Output::Threads::add_written(Console& console, Source& source, std::size_t count, std::int64_t end) {
  const std::uint64_t before = source.written;
  source.written += count;
  const std::int64_t shift = static_cast<std::int64_t>(source.written) - end;
  if (end < 0 || shift == source.shift) return;
  source.shift = shift;
  if (source.taken == before) return;
  console.gone += before - source.taken;
  source.taken = before;
  tell_loss(source, 0);
}

void Output::Threads::run_collector() {
  std::string buffer(chunk_bytes, '\0');
  std::array<epoll_event, 64> ready{};
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), -1);
    for (int i = 0; i < count; ++i)
      if (const auto watched = watched_.find(ready[static_cast<std::size_t>(i)].data.fd); watched != watched_.end())
        read_some(watched->first, buffer);
    std::vector<std::function<void(std::string&)>> requests;
    {
      const std::lock_guard lock{requests_mutex_};
      requests.swap(requests_);
      std::uint64_t ignored = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof ignored);
    }
    for (auto& request : requests) request(buffer);
    if (stopping_) return;
  }
}

void Output::Threads::ask_collector(std::function<void(std::string&)> request) {
  const std::lock_guard lock{requests_mutex_};
  requests_.push_back(std::move(request));
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(wake_.get(), &one, sizeof one);
}

// How many of the bytes are in the file. One that has failed is tried again about once a second, from when the console has all that it did not take.
std::size_t Output::Threads::write_file(Console& console, Source& source, std::string_view bytes) {
  if (!source.file) return 0;
  if (source.missing > 0 && !take_up(console, source)) return source.missing += bytes.size(), 0;
  const std::size_t in_file = write_all(source.file.get(), bytes);
  if (in_file == bytes.size()) return in_file;
  const int error = errno;
  source.missing = bytes.size() - in_file;
  source.tried = SteadyClock{}.now();
  if (told_errors_.is_due(error, source.tried))
    warn(fmt::format("{}; until files that fail like this take more, further output is only shown on the console",
                     message(from_errno(error, "write " + source.path.native()))));
  return in_file;
}

// Whether the file takes more again. It says then where bytes are missing.
bool Output::Threads::take_up(Console& console, Source& source) {
  {
    const std::lock_guard lock{console.mutex};
    if (!source.memory.empty()) return false;  // what is in the file is shown first
  }
  const Instant now = SteadyClock{}.now();
  if (now - source.tried < file_tries_every) return false;
  source.tried = now;
  return write_gap(source);
}

// Whether it could be said in the file where bytes are missing.
bool Output::Threads::write_gap(Source& source) {
  const std::string gap = fmt::format("\n[elrun: {} bytes are missing here, which could not be written]\n", source.missing);
  if (write_all(source.file.get(), gap) < gap.size()) return false;
  source.missing = 0;
  return true;
}

// True if there may be more at once.
bool Output::Threads::read_some(int pipe, std::string& buffer) {
  const auto found = watched_.find(pipe);
  if (found == watched_.end()) return false;
  Watched& watched = found->second;
  Source& source = *watched.source;
  ssize_t got = 0;
  do got = ::read(pipe, buffer.data(), buffer.size());
  while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return false;
  if (got <= 0) {
    forget(pipe);
    return false;
  }
  const std::string_view bytes{buffer.data(), static_cast<std::size_t>(got)};
  Console& console = *watched.console;
  const std::size_t in_file = write_file(console, source, bytes);
  const std::int64_t end = in_file > 0 ? ::lseek(source.file.get(), 0, SEEK_CUR) : -1;  // it was opened to append: a write leads to the end
  bool full = false;
  {
    const std::lock_guard lock{console.mutex};
    if (source.seen || !source.is_passed_on) {  // else it is only remembered, and no console holds it up
      console.arrived += bytes.size();
      if (in_file > 0) add_written(console, source, in_file, end);
      source.memory += bytes.substr(in_file);
    }
    full = source.memory.size() >= memory_bytes_max;
    source.read += bytes.size();
    remember(source, bytes);
  }
  console.news.notify_one();
  if (full) pause(watched, true);
  return true;  // a pause applies to the next turn: a drain takes all that the pipe holds
}

void Output::Threads::remember(Source& source, std::string_view bytes) {
  if (bytes.size() >= last_bytes_max) {
    source.is_whole = source.is_whole && source.tail.empty() && bytes.size() == last_bytes_max;
    source.tail.assign(bytes.substr(bytes.size() - last_bytes_max));
    return;
  }
  source.tail += bytes;
  if (source.tail.size() <= 2 * last_bytes_max) return;
  source.tail.erase(0, source.tail.size() - last_bytes_max);
  source.is_whole = false;
}

void Output::Threads::forget(int pipe) {
  const auto found = watched_.find(pipe);
  Console& console = *found->second.console;
  const SourcePointer source = found->second.source;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pipe, nullptr);
  watched_.erase(found);
  source->pipe = Fd{};
  if (source->missing > 0 && !write_gap(*source))
    warn(fmt::format("{} bytes are missing at the end of {}, which could not be written", source->missing, source->path.native()));
  {
    const std::lock_guard lock{console.mutex};
    source->ended = true;
  }
  console.news.notify_one();
}

void Output::Threads::pause(Watched& watched, bool paused) {
  watched.paused = paused;
  epoll_event event{.events = paused ? 0u : static_cast<std::uint32_t>(EPOLLIN), .data = {.fd = watched.source->pipe.get()}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, watched.source->pipe.get(), &event);
}

void Output::Threads::resume(const SourcePointer& source) {
  ask_collector([this, source](std::string&) {
    if (const auto watched = watched_.find(source->pipe.get()); watched != watched_.end()) pause(watched->second, false);
  });
}

// All that is in the pipe now.
void Output::Threads::drain(int pipe, std::string& buffer) {
  for (int i = 0; i < drain_reads_max; ++i)
    if (!read_some(pipe, buffer)) return;
}

Result<void> Output::Threads::start(bool one_destination) {
  epoll_ = Fd{::epoll_create1(EPOLL_CLOEXEC)};
  wake_ = Fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  epoll_event event{.events = EPOLLIN, .data = {.fd = wake_.get()}};
  if (!epoll_ || !wake_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0)
    return from_errno(errno, "watch the workers' output");
  out_.fd = 1;
  err_.fd = 2;
  one_console_ = one_destination;
  start_thread([self = shared_from_this()] { self->run_collector(); });
  start_thread([self = shared_from_this()] { self->run_console(self->err_); });
  if (!one_console_) start_thread([self = shared_from_this()] { self->run_console(self->out_); });
  return {};
}

void Output::Threads::add(const SourcePointer& source, Stream stream) {
  Console& console = console_of(stream);
  {
    const std::lock_guard lock{console.mutex};
    console.sources.push_back(source);
  }
  ask_collector([this, source, &console](std::string&) {
    const int pipe = source->pipe.get();
    watched_.emplace(pipe, Watched{source, &console});
    epoll_event event{.events = EPOLLIN, .data = {.fd = pipe}};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pipe, &event);
  });
}

bool Output::Threads::say(std::string_view line) {
  {
    const std::lock_guard lock{err_.mutex};
    if (err_.own_bytes + line.size() > own_bytes_max) return false;
    err_.own.push_back({std::string{line}, err_.arrived});
    err_.own_bytes += line.size();
  }
  err_.news.notify_one();
  return true;
}

// Everything that was written until now, and no more.
void Output::Threads::finish(std::function<void()> then) {
  ask_collector([this, then = std::move(then)](std::string& buffer) {
    std::vector<int> pipes;
    for (const auto& [pipe, watched] : watched_) pipes.push_back(pipe);
    for (const int pipe : pipes) drain(pipe, buffer);
    for (const int pipe : pipes)
      if (watched_.contains(pipe)) forget(pipe);
    for (Console* console : {&out_, &err_}) {
      if (console == &out_ && one_console_) continue;
      {
        const std::lock_guard lock{console->mutex};
        console->when_idle = then;
      }
      console->news.notify_one();
    }
  });
}

void Output::Threads::stop() {
  leave_loop();
  ask_collector([this](std::string&) { stopping_ = true; });
  for (Console* console : {&out_, &err_}) {
    {
      const std::lock_guard lock{console->mutex};
      console->stopping = true;
    }
    console->news.notify_one();
  }
}

}  // namespace elrun::inline v0::launcher
