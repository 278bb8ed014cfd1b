// A teed stream takes two steps, on two threads. The collector reads the worker's pipe and writes the file; it never
// touches the terminal. A console writes to the terminal, line by line, what it reads back from the file; it may stand
// still for hours, and then goes on where it was. So a stream's memory is bounded, and nothing is lost or held up, while
// its file can be written. When that fails the bytes go through memory, and the pipe is left alone while that is full.
//
// The threads share nothing with the loop but what is in Threads. They are never joined: a write to a terminal that
// nobody reads may not return. They end by themselves, or with the process.
#include "launcher/output/output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <boost/asio/post.hpp>

#include "launcher/output/lines.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::size_t chunk_bytes = std::size_t{256} << 10;       // read at once, and shown at once
constexpr std::size_t write_bytes = std::size_t{64} << 10;        // written to a terminal at once: progress is seen in between
constexpr int pipe_bytes = 1 << 20;                               // of a worker's pipe, if the system grants it
constexpr std::size_t memory_bytes_max = std::size_t{1} << 20;    // of a stream without a file, before its worker is held up
constexpr int drain_reads_max = 16;                               // who goes on writing after a worker's end is not waited for
constexpr std::size_t own_bytes_max = std::size_t{1} << 20;       // of elrun's own lines that wait for the terminal
constexpr std::size_t own_wait_bytes_max = std::size_t{1} << 20;  // of workers' bytes that they wait for
constexpr Duration drain_limit = 1s;                              // a file that blocks does not hold up the report of an end
constexpr int stall_seconds = 10;                                 // a terminal that takes nothing for this long is given up

// Writes all of `bytes`, or returns how many before the error that is in errno.
std::size_t write_all(int fd, std::string_view bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote = ::write(fd, bytes.data() + done, std::min(bytes.size() - done, write_bytes));
    if (wrote > 0) {
      done += static_cast<std::size_t>(wrote);
    } else if (wrote < 0 && errno == EAGAIN) {  // somebody who shares the terminal has made it non-blocking
      pollfd room{fd, POLLOUT, 0};
      ::poll(&room, 1, 1000);
    } else if (wrote == 0 || errno != EINTR) {
      break;
    }
  }
  return done;
}

// To standard error, in pieces that poll promises room for.
bool write_patiently(std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd room{2, POLLOUT, 0};
    if (::poll(&room, 1, stall_seconds * 1000) == 0) return false;
    const ssize_t n = ::write(2, bytes.data(), std::min<std::size_t>(bytes.size(), PIPE_BUF));
    if (n < 0 && errno != EINTR && errno != EAGAIN) return true;  // nobody is there to read it
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool same_file(int a, int b) {
  struct stat one {
  }, other{};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// No signal is for such a thread: the loop handles them, and a child between vfork and exec must not be disturbed.
template <class Body>
void start_thread(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread{std::move(body)}.detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

// One stream of one worker. Which thread may touch what is said at each part.
struct Output::Source {
  // Fixed from the start.
  Attempt attempt{};
  Path path;
  Fd file;                       // empty: there is none, and the bytes go through memory
  std::shared_ptr<Fd> filtered;  // empty: no line is looked for
  bool seen = true;
  bool is_passed_on = false;  // as it is, instead of line by line

  // The collector's.
  bool file_works = false;
  Fd pipe;

  // The console's.
  Lines lines{""};

  // Under the console's mutex.
  std::uint64_t written = 0;  // bytes in the file
  std::uint64_t taken = 0;    // of these, how many went to the console
  std::string memory;         // what did not get into the file
  std::string tail;           // the last bytes of all
  bool is_whole = true;       // the tail is all there was
  bool ended = false;

  [[nodiscard]] bool has_news() const { return taken < written || !memory.empty() || ended; }
};
struct Output::Threads : std::enable_shared_from_this<Output::Threads> {
  using SourcePointer = std::shared_ptr<Source>;
  explicit Threads(asio::io_context& loop, const Log& log) : loop_{&loop}, log_{&log} {}

  // --- the loop, as far as it still exists ---

  void post(std::function<void()> what) {
    const std::lock_guard lock{loop_mutex_};
    if (loop_ != nullptr) asio::post(*loop_, std::move(what));
  }
  void warn(std::string text) {
    const std::lock_guard lock{loop_mutex_};
    if (loop_ != nullptr) asio::post(*loop_, [log = log_, text = std::move(text)] { log->warning(text); });
  }
  void leave_loop() {
    const std::lock_guard lock{loop_mutex_};
    loop_ = nullptr;
  }

  // --- a terminal, file or pipe that elrun itself was given ---

  // One of elrun's own: it comes after what workers had written when it was said, unless that is too much.
  struct OwnLine {
    std::string text;
    std::uint64_t after = 0;  // that many bytes of workers
  };

  struct Console {
    int fd = -1;
    std::mutex mutex;
    std::condition_variable news;
    std::vector<SourcePointer> sources;  // the one that was shown last is last
    std::deque<OwnLine> own;
    std::size_t own_bytes = 0;
    std::uint64_t arrived = 0, gone = 0;  // bytes of all sources
    bool works = true, stopping = false;
    bool busy = false;  // something is on its way that is in no list any more
    std::function<void()> when_idle;
    std::atomic<std::uint64_t> moved = 0;  // bytes, to see that it does not stand still
  };

  static bool own_is_next(const Console& console) {
    return !console.own.empty() && (console.gone >= console.own.front().after || console.arrived - console.gone > own_wait_bytes_max);
  }

  static bool idle(const Console& console) { return console.sources.empty() && console.own.empty() && !console.busy; }

  void show(Console& console, std::string_view bytes) {
    while (!bytes.empty() && console.works) {
      const std::string_view part = bytes.substr(0, write_bytes);
      if (write_all(console.fd, part) < part.size()) console.works = false;  // the terminal is gone: the files go on
      console.moved += part.size();
      bytes.remove_prefix(part.size());
    }
  }

  // What happened longer ago is shown first: an attempt begins on the terminal when the one before it is through.
  static SourcePointer next_of(const Console& console) {
    SourcePointer best;
    for (const SourcePointer& source : console.sources)
      if (source->has_news() && (!best || source->attempt < best->attempt)) best = source;
    return best;
  }

  void run_console(Console& console) {
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
      const std::uint64_t at = source->taken;
      const std::size_t in_file = std::min<std::uint64_t>(source->written - at, chunk_bytes);
      const bool full = source->memory.size() >= memory_bytes_max;
      const bool last = in_file == 0 && source->memory.empty();
      if (in_file == 0) bytes = std::exchange(source->memory, {});
      else source->taken += in_file;
      console.gone += in_file > 0 ? in_file : bytes.size();
      // Whoever was shown comes last now.
      const auto place = std::find(console.sources.begin(), console.sources.end(), source);
      std::rotate(place, place + 1, console.sources.end());
      if (last) console.sources.pop_back();
      console.busy = last;  // not idle before its last line is out
      lock.unlock();
      if (in_file > 0) read_back(*source, at, in_file, bytes);
      shown.clear();
      filtered.clear();
      if (source->is_passed_on) shown.swap(bytes);
      else if (last) source->lines.end(shown, filtered);
      else source->lines.feed(bytes, shown, filtered);
      if (source->filtered && !filtered.empty()) write_all(source->filtered->get(), filtered);
      if (source->seen) show(console, shown);
      else ++console.moved;
      if (full) resume(source);
      lock.lock();
      console.busy = false;
    }
  }

  // What cannot be read back has been in the file all the same.
  static void read_back(const Source& source, std::uint64_t at, std::size_t size, std::string& bytes) {
    bytes.resize(size);
    std::size_t done = 0;
    while (done < size) {
      const ssize_t got = ::pread(source.file.get(), bytes.data() + done, size - done, static_cast<off_t>(at + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;  // somebody has cut the file short
      done += static_cast<std::size_t>(got);
    }
    bytes.resize(done);
  }

  // --- the collector ---

  struct Watched {
    SourcePointer source;
    Console* console = nullptr;
    bool paused = false;
  };

  void run_collector() {
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

  void ask_collector(std::function<void(std::string&)> request) {
    const std::lock_guard lock{requests_mutex_};
    requests_.push_back(std::move(request));
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t ignored = ::write(wake_.get(), &one, sizeof one);
  }

  // True if there may be more at once.
  bool read_some(int pipe, std::string& buffer) {
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
    std::size_t in_file = 0;
    if (source.file_works) {
      in_file = write_all(source.file.get(), bytes);
      if (in_file < bytes.size()) {
        source.file_works = false;
        const int error = errno;
        if (std::exchange(write_error_told_, error) != error)  // a full disk is full for all of them
          warn(fmt::format("{}; what is written from here on into a file that fails so is only shown",
                           message(from_errno(error, "write " + source.path.native()))));
      }
    }
    Console& console = *watched.console;
    bool full = false;
    {
      const std::lock_guard lock{console.mutex};
      if (source.seen || !source.is_passed_on) {  // else it is only remembered, and no console holds it up
        console.arrived += bytes.size();
        source.written += in_file;
        source.memory += bytes.substr(in_file);
      }
      full = source.memory.size() >= memory_bytes_max;
      remember(source, bytes);
    }
    console.news.notify_one();
    if (full) pause(watched, true);
    return true;  // a pause is for the next turn: whoever drains takes what the pipe holds
  }

  static void remember(Source& source, std::string_view bytes) {
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

  void forget(int pipe) {
    const auto found = watched_.find(pipe);
    Console& console = *found->second.console;
    const SourcePointer source = found->second.source;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pipe, nullptr);
    watched_.erase(found);
    source->pipe = Fd{};
    {
      const std::lock_guard lock{console.mutex};
      source->ended = true;
    }
    console.news.notify_one();
  }

  void pause(Watched& watched, bool paused) {
    watched.paused = paused;
    epoll_event event{.events = paused ? 0u : static_cast<std::uint32_t>(EPOLLIN), .data = {.fd = watched.source->pipe.get()}};
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, watched.source->pipe.get(), &event);
  }

  void resume(const SourcePointer& source) {
    ask_collector([this, source](std::string&) {
      if (const auto watched = watched_.find(source->pipe.get()); watched != watched_.end()) pause(watched->second, false);
    });
  }

  // All that is in the pipe now.
  void drain(int pipe, std::string& buffer) {
    for (int i = 0; i < drain_reads_max; ++i)
      if (!read_some(pipe, buffer)) return;
  }

  // --- asked by the loop ---

  [[nodiscard]] Result<void> start(bool one_destination) {
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

  [[nodiscard]] Console& console_of(Stream stream) { return stream == Stream::out && !one_console_ ? out_ : err_; }

  void add(const SourcePointer& source, Stream stream) {
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

  [[nodiscard]] bool say(std::string_view line) {
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
  void finish(std::function<void()> then) {
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

  void stop() {
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

  std::mutex loop_mutex_;
  asio::io_context* loop_;
  const Log* log_;
  Console out_, err_;
  bool one_console_ = false;
  Fd epoll_, wake_;
  std::mutex requests_mutex_;
  std::vector<std::function<void(std::string&)>> requests_;
  std::map<int, Watched> watched_;                                 // the collector's
  int write_error_told_ = 0;                                       // the collector's; 0: none
  bool stopping_ = false;                                          // the collector's
  std::map<std::pair<LocalRank, Stream>, SourcePointer> sources_;  // of each worker's newest attempt; the loop's
};

// --- the loop's side ------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Output>> Output::start(asio::io_context& loop, Setting setting, const Log& log) {
  const LaunchOptions& options = setting.options;
  const bool nowhere = options.log_dir == "/dev/null";
  bool has_logs = !options.log_dir.empty();
  for (std::uint32_t i = 0; i < options.workers; ++i)
    for (const StreamsByRank* which : {&options.redirects, &options.tee}) {
      const Streams streams = which->of(LocalRank{i});
      has_logs = has_logs || streams.out || streams.err;
    }
  if (nowhere) return std::unique_ptr<Output>{new Output{loop, std::move(setting), LogLayout{}, log}};
  if (!has_logs) {
    const LogLayout errors{setting.private_directory};
    return std::unique_ptr<Output>{new Output{loop, std::move(setting), errors, log}};
  }
  Path place = options.log_dir;
  if (place.empty()) {
    std::string name = (setting.temporary / "elrun-logs-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr)
      return from_errno(errno, fmt::format("make {}, a directory for logs; --log_dir names another place", name));
    place = name;
  }
  std::error_code error;
  std::filesystem::create_directories(place, error);
  place = std::filesystem::absolute(place, error);  // workers may change their directory
  std::string run = (place / log_directory_name(setting.run, "XXXXXX")).native();
  if (::mkdtemp(run.data()) == nullptr) return from_errno(errno, fmt::format("make {}, the directory of this run's logs (--log_dir)", run));
  ::chmod(run.c_str(), 0755);  // as any other directory: who may read the logs is said by the one that holds it
  log.info(fmt::format("logs are in {}", run));
  return std::unique_ptr<Output>{new Output{loop, std::move(setting), LogLayout{run}, log}};
}

Output::Output(asio::io_context& loop, Setting setting, LogLayout layout, const Log& log)
    : loop_{loop},
      setting_{std::move(setting)},
      layout_{std::move(layout)},
      log_{log},
      one_destination_{same_file(1, 2)},
      watches_errors_{setting_.options.log_dir != "/dev/null" && ::isatty(2) == 0},
      stall_{loop} {}

Output::~Output() {
  if (!threads_) return;
  setting_.lines.set_writer(nullptr);
  threads_->stop();
}

void Output::begin_attempt() {
  if (begun_) attempt_ = Attempt{attempt_.value() + 1};
  begun_ = true;
  filtered_.clear();
}

Path Output::error_file(LocalRank worker) {
  if (!layout_.has_files()) return {};
  const Path directory = layout_.worker_directory(attempt_, worker);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (!error) return layout_.error_file(attempt_, worker);
  log_.warning(message(from_errno(error.value(), fmt::format("make {}", directory.native()))));
  return {};
}

Route Output::route_of(LocalRank worker, Stream stream) const {
  const LaunchOptions& options = setting_.options;
  const auto pick = [stream](const Streams& s) { return stream == Stream::out ? s.out : s.err; };
  const auto& filters = stream == Stream::out ? options.duplicate_stdout_filters : options.duplicate_stderr_filters;
  return route({.redirected = pick(options.redirects.of(worker)),
                .teed = pick(options.tee.of(worker)),
                .seen = !options.local_ranks_filter || options.local_ranks_filter->contains(worker.value()),
                .has_files = options.log_dir != "/dev/null",
                .has_filters = !filters.empty()});
}

Result<Fd> Output::open_log(const Path& path, int access) const {
  // Appending: a program that opens /dev/stderr anew and cuts the file short leaves no hole in it.
  Fd file{::open(path.c_str(), access | O_CREAT | O_APPEND | O_CLOEXEC, 0644)};
  if (!file) return from_errno(errno, fmt::format("open {}", path.native()));
  return file;
}

std::shared_ptr<Fd> Output::filtered(Stream stream) {
  const auto found = filtered_.find(stream);
  if (found != filtered_.end()) return found->second;
  auto file = open_log(layout_.filtered_file(attempt_, stream), O_WRONLY);
  if (!file.ok()) log_.warning(message(file.failure()));
  return filtered_[stream] = file.ok() ? std::make_shared<Fd>(std::move(*file)) : nullptr;
}

WorkerStreams Output::open(LocalRank worker, Rank rank) {
  attempts_[worker] = attempt_;
  if (threads_)
    for (const Stream stream : {Stream::out, Stream::err}) threads_->sources_.erase({worker, stream});
  WorkerStreams streams{open_stream(worker, rank, Stream::out), open_stream(worker, rank, Stream::err)};
  // With both in the same file their order must stay, so they share one pipe.
  if (!streams.out && streams.err && one_destination_ && route_of(worker, Stream::out) == Route::inherit &&
      route_of(worker, Stream::err) == Route::inherit)
    streams.out = Fd{::fcntl(streams.err.get(), F_DUPFD_CLOEXEC, 3)};
  return streams;
}

Fd Output::open_stream(LocalRank worker, Rank rank, Stream stream) {
  const Route to = route_of(worker, stream);
  const bool watched = stream == Stream::err && (to == Route::null || (to == Route::inherit && watches_errors_));
  if (watched)
    if (Fd pipe = read_through_pipe(worker, stream, {.attempt = attempt_, .seen = to == Route::inherit, .is_passed_on = true})) return pipe;
  if (to == Route::inherit) return {};
  if (to == Route::null) return Fd{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  const Path path = layout_.stream_file(attempt_, worker, stream);
  auto file = open_log(path, to == Route::file ? O_WRONLY : O_RDWR);
  if (to == Route::file) {
    if (file.ok()) return std::move(*file);
    log_.warning(message(file.failure()) + "; this output is not redirected");
    return {};
  }
  const LaunchOptions& options = setting_.options;
  Source source{.attempt = attempt_, .path = path, .seen = to == Route::tee, .file_works = file.ok()};
  if (file.ok()) source.file = std::move(*file);
  else log_.warning(message(file.failure()) + "; this output is only shown");
  const auto& filters = stream == Stream::out ? options.duplicate_stdout_filters : options.duplicate_stderr_filters;
  if (!filters.empty()) source.filtered = filtered(stream);
  source.lines = Lines{line_prefix(options.log_line_prefix_template, {options.role, worker, rank, setting_.host}), filters};
  return read_through_pipe(worker, stream, std::move(source));
}

// The end for the worker; an empty one if there is no pipe to be had, and the worker inherits.
Fd Output::read_through_pipe(LocalRank worker, Stream stream, Source source) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    log_.warning(message(from_errno(errno, fmt::format("make a pipe for the output of local rank {}", worker.value()))) +
                 "; it goes past elrun");
    return {};
  }
  Fd writing{ends[1]};
  source.pipe = Fd{ends[0]};
  ::fcntl(source.pipe.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(source.pipe.get(), F_SETPIPE_SZ, pipe_bytes);
  if (!threads_) {
    auto threads = std::make_shared<Threads>(loop_, log_);
    if (const auto started = threads->start(one_destination_); !started.ok()) {
      log_.warning(message(started.failure()) + "; it goes past elrun");
      return {};
    }
    threads_ = std::move(threads);
    setting_.lines.set_writer([all = threads_.get()](std::string_view line) { return all->say(line); });
  }
  auto shared = std::make_shared<Source>(std::move(source));
  threads_->sources_[{worker, stream}] = shared;
  threads_->add(shared, stream);
  return writing;
}

void Output::after_worker(LocalRank worker, std::function<void()> then) {
  std::vector<Threads::SourcePointer> sources;
  if (threads_)
    for (const Stream stream : {Stream::out, Stream::err})
      if (const auto found = threads_->sources_.find({worker, stream}); found != threads_->sources_.end()) sources.push_back(found->second);
  if (sources.empty()) return then();
  // Whichever comes first, the answer or the end of the patience.
  auto patience = std::make_shared<asio::steady_timer>(loop_, drain_limit);
  auto once = std::make_shared<std::function<void()>>(std::move(then));
  const auto go_on = [once, patience] {
    patience->cancel();
    if (const auto what = std::exchange(*once, nullptr)) what();
  };
  patience->async_wait([once](const boost::system::error_code& error) {
    if (error) return;
    if (const auto what = std::exchange(*once, nullptr)) what();
  });
  threads_->ask_collector([threads = threads_.get(), sources, go_on](std::string& buffer) {
    for (const Threads::SourcePointer& source : sources)
      if (source->pipe) threads->drain(source->pipe.get(), buffer);
    threads->post(go_on);
  });
}

std::vector<std::string> Output::last_errors(LocalRank worker) const {
  if (threads_) {
    if (const auto found = threads_->sources_.find({worker, Stream::err}); found != threads_->sources_.end()) {
      const std::lock_guard lock{threads_->console_of(Stream::err).mutex};
      return last_lines(found->second->tail, found->second->is_whole, last_lines_max);
    }
  }
  if (route_of(worker, Stream::err) != Route::file) return {};
  const Fd file{::open(layout_.stream_file(attempts_.at(worker), worker, Stream::err).c_str(), O_RDONLY | O_CLOEXEC)};
  const off_t size = file ? ::lseek(file.get(), 0, SEEK_END) : 0;
  if (size <= 0) return {};
  const auto length = std::min<std::size_t>(static_cast<std::size_t>(size), last_bytes_max);
  std::string tail(length, '\0');
  const ssize_t got = ::pread(file.get(), tail.data(), length, size - static_cast<off_t>(length));
  tail.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return last_lines(tail, length == static_cast<std::size_t>(size), last_lines_max);
}

std::uintmax_t Output::bytes_of(LocalRank worker) const {
  std::uintmax_t bytes = 0;
  for (const Stream stream : {Stream::out, Stream::err}) {
    std::error_code none;
    const std::uintmax_t size = std::filesystem::file_size(layout_.stream_file(attempts_.at(worker), worker, stream), none);
    if (!none) bytes += size;
  }
  return bytes;
}

void Output::after_all(std::function<void()> then) {
  if (!threads_) return then();
  then_ = std::move(then);
  threads_->finish([this, threads = threads_.get()] { threads->post([this] { all_shown(); }); });
  watch_for_stall(0, 0);
}

// Both terminals are through, or nobody waits any more.
void Output::all_shown() {
  for (Threads::Console* console : {&threads_->out_, &threads_->err_}) {
    const std::lock_guard lock{console->mutex};
    if (console->fd < 0 || Threads::idle(*console)) continue;
    // A line of elrun's own came meanwhile: the console looks again when it is through.
    console->when_idle = [this, threads = threads_.get()] { threads->post([this] { all_shown(); }); };
    return;
  }
  if (!then_) return;
  stall_.cancel();
  end_of_show(true);
}

// From here on elrun's own lines go to standard error directly: nothing else does. No worker is left, so for a reader that
// does read the loop may wait a bounded time: the report of a failure is long, and comes last.
void Output::end_of_show(bool is_read) {
  if (is_read) setting_.lines.set_writer(write_patiently);
  else setting_.lines.set_writer(nullptr);
  if (const auto then = std::exchange(then_, nullptr)) then();
  setting_.lines.set_writer(nullptr);
}

void Output::watch_for_stall(std::uint64_t moved, int seconds) {
  stall_.expires_after(1s);
  stall_.async_wait([this, moved, seconds](const boost::system::error_code& error) {
    if (error || !then_) return;
    const std::uint64_t now = threads_->out_.moved + threads_->err_.moved;
    if (now != moved) return watch_for_stall(now, 0);
    if (seconds + 1 < stall_seconds) return watch_for_stall(now, seconds + 1);
    setting_.lines.set_writer(nullptr);
    log_.warning(fmt::format("nobody has read this output for {} s; the rest is only in {}", stall_seconds, layout_.base().native()));
    end_of_show(false);
  });
}

}  // namespace elrun::inline v0::launcher
