// The side of the loop: which stream goes where, and when all of it was shown. The threads are in threads.cpp.
#include "launcher/output/output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>
#include <boost/asio/steady_timer.hpp>

#include "launcher/output/threads.hpp"
#include "launcher/report/error_record.hpp"
#include "launcher/report/evidence.hpp"
#include "lib/base/assert.hpp"
#include "lib/base/bounded_write.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0::launcher {
namespace asio = boost::asio;
namespace {

constexpr int pipe_bytes = 1 << 20;   // of a worker's pipe, if the system grants it
constexpr Duration drain_limit = 1s;  // a file that blocks does not hold up the report of an end
constexpr Duration place_limit = 1s;  // a place of logs that hangs holds up the loop no longer
constexpr int stall_seconds = 10;     // a terminal that takes nothing for this long is given up
constexpr Duration stall_limit = stall_seconds * 1s;

bool write_patiently(std::string_view bytes) { return write_within(2, bytes, {.first = stall_limit, .next = stall_limit}); }

Failure no_answer(const std::string& what) {
  return {Code::deadline_passed, Remedy::retry,
          fmt::format("{}: its file system has not answered within {}", what, for_people(place_limit))};
}

// The end of a worker's standard error file.
std::vector<std::string> lines_in(const Path& path) {
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  const off_t size = file ? ::lseek(file.get(), 0, SEEK_END) : 0;
  if (size <= 0) return {};
  const auto length = std::min<std::size_t>(static_cast<std::size_t>(size), last_bytes_max);
  std::string tail(length, '\0');
  const ssize_t got = ::pread(file.get(), tail.data(), length, size - static_cast<off_t>(length));
  tail.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return last_lines(tail, length == static_cast<std::size_t>(size), last_lines_max);
}

void read_record(const Path& path, LastWords& words) {
  struct stat info {};
  words.has_record = !path.empty() && ::stat(path.c_str(), &info) == 0;
  if (!words.has_record) return;
  words.record = read_regular_file(path, error_record_max);
  words.record_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
}

bool same_file(int a, int b) {
  struct stat one {
  }, other{};
  return ::fstat(a, &one) == 0 && ::fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace

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
  if (error) return from_errno(error.value(), fmt::format("make {}, the directory for logs (--log_dir)", place.native()));
  place = std::filesystem::absolute(place, error);  // workers may change their directory
  std::string run = (place / log_directory_name(setting.run, "XXXXXX")).native();
  if (::mkdtemp(run.data()) == nullptr) return from_errno(errno, fmt::format("make {}, the directory of this run's logs (--log_dir)", run));
  ::chmod(run.c_str(), 0755);  // as any other directory: the mode of the directory above it decides who may read the logs
  log.info(fmt::format("logs are in {}", run));
  return std::unique_ptr<Output>{new Output{loop, std::move(setting), LogLayout{run}, log}};
}

Output::Output(asio::io_context& loop, Setting setting, LogLayout layout, const Log& log)
    : loop_{loop},
      setting_{std::move(setting)},
      layout_{std::move(layout)},
      place_{keeps_files() ? std::optional<Duration>{place_limit} : std::nullopt},
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
  if (!keeps_files()) remove_old_attempts();
}

// A job that starts again every few seconds would fill a file system in memory within days.
void Output::remove_old_attempts() {
  std::set<Attempt> in_use;
  for (const auto& [worker, attempt] : attempts_) in_use.insert(attempt);
  std::erase_if(made_, [&](Attempt attempt) {
    std::error_code error;
    if (!in_use.contains(attempt)) std::filesystem::remove_all(layout_.attempt_directory(attempt), error);
    return !in_use.contains(attempt);
  });
}

Path Output::error_file(LocalRank worker) {
  if (!layout_.has_files()) return {};
  const Path directory = layout_.worker_directory(attempt_, worker);
  if (!keeps_files()) made_.insert(attempt_);
  const auto error = place_.ask<std::error_code>([directory] {
    std::error_code of_call;
    std::filesystem::create_directories(directory, of_call);
    return of_call;
  });
  if (error && !*error) return layout_.error_file(attempt_, worker);
  const std::string what = fmt::format("make {}", directory.native());
  log_.warning(message(error ? from_errno(error->value(), what) : no_answer(what)));
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

Result<Fd> Output::open_log(const Path& path, int access) {
  const std::string what = fmt::format("open {}", path.native());
  // Appending: a program that opens /dev/stderr anew and cuts the file short leaves no hole in it.
  auto opened = place_.ask<Result<Fd>>([path, access, what]() -> Result<Fd> {
    Fd file{::open(path.c_str(), access | O_CREAT | O_APPEND | O_CLOEXEC, 0644)};
    if (!file) return from_errno(errno, what);
    return file;
  });
  if (!opened) return no_answer(what);
  return std::move(*opened);
}

// Its size is known also when another program has renamed or removed it. That this is closed writes nothing, so it cannot hang.
std::shared_ptr<Fd> Output::kept_in_sight(const Fd& file) {
  auto opened =
      place_.ask<Fd>([file = file.get()] { return Fd{::open(fmt::format("/proc/self/fd/{}", file).c_str(), O_PATH | O_CLOEXEC)}; });
  return opened && *opened ? std::make_shared<Fd>(*std::move(opened)) : nullptr;
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
  for (const Stream stream : {Stream::out, Stream::err}) {
    own_files_.erase({worker, stream});
    if (threads_) threads_->sources_.erase({worker, stream});
  }
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
    if (setting_.options.hang_sign == HangSign::output) own_files_[{worker, stream}] = file.ok() ? kept_in_sight(*file) : nullptr;
    if (file.ok()) return std::move(*file);
    log_.warning(message(file.failure()) + "; this output is not redirected");
    return {};
  }
  const LaunchOptions& options = setting_.options;
  Source source{.attempt = attempt_, .path = path, .seen = to == Route::tee};
  if (file.ok()) source.file = std::move(*file);
  else log_.warning(message(file.failure()) + "; this output is only shown on the console");
  const auto& filters = stream == Stream::out ? options.duplicate_stdout_filters : options.duplicate_stderr_filters;
  if (!filters.empty()) source.filtered = filtered(stream);
  source.lines = Lines{line_prefix(options.log_line_prefix_template, {options.role, worker, rank, setting_.host}), filters};
  return read_through_pipe(worker, stream, std::move(source));
}

// The end for the worker; an empty one if there is no pipe to be had, and the worker inherits.
Fd Output::read_through_pipe(LocalRank worker, Stream stream, Source source) {
  const auto not_seen = [&](const Failure& why) {
    log_.warning(message(why) + "; elrun does not see this output");
    own_files_[{worker, stream}] = nullptr;  // that it does not grow is no sign of a hang
    return Fd{};
  };
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return not_seen(from_errno(errno, fmt::format("make a pipe for the output of local rank {}", worker.value())));
  Fd writing{ends[1]};
  source.pipe = Fd{ends[0]};
  ::fcntl(source.pipe.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(source.pipe.get(), F_SETPIPE_SZ, pipe_bytes);
  if (!threads_) {
    auto threads = std::make_shared<Threads>(loop_, log_);
    if (const auto started = threads->start(one_destination_); !started.ok()) return not_seen(started.failure());
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

std::optional<std::vector<std::string>> Output::lines_through_pipe(LocalRank worker) const {
  if (!threads_) return {};
  const auto found = threads_->sources_.find({worker, Stream::err});
  if (found == threads_->sources_.end()) return {};
  const std::lock_guard lock{threads_->console_of(Stream::err).mutex};
  return last_lines(found->second->tail, found->second->is_whole, last_lines_max);
}

LastWords Output::last_words(LocalRank worker) {
  const auto shown = lines_through_pipe(worker);
  const Attempt attempt = attempts_.at(worker);
  const Path record = layout_.error_file(attempt, worker);
  const Path errors = !shown && route_of(worker, Stream::err) == Route::file ? layout_.stream_file(attempt, worker, Stream::err) : Path{};
  LastWords words{.place_answers = false};
  if (record.empty() && errors.empty()) words.place_answers = true;  // there is nothing to ask for
  else if (auto found = place_.ask<LastWords>([record, errors] {
             LastWords all;
             if (!errors.empty()) all.lines = lines_in(errors);
             read_record(record, all);
             return all;
           }))
    words = std::move(*found);
  if (shown) words.lines = *shown;
  return words;
}

std::optional<std::uintmax_t> Output::bytes_of(LocalRank worker) {
  std::uintmax_t bytes = 0;
  std::vector<std::shared_ptr<Fd>> files;
  for (const Stream stream : {Stream::out, Stream::err}) {
    if (const auto file = own_files_.find({worker, stream}); file != own_files_.end()) files.push_back(file->second);
    if (!threads_) continue;
    const auto source = threads_->sources_.find({worker, stream});
    if (source == threads_->sources_.end()) continue;
    const std::lock_guard lock{threads_->console_of(stream).mutex};
    bytes += source->second->read;
  }
  if (std::ranges::find(files, nullptr) != files.end()) return {};
  if (files.empty()) return bytes;
  return place_.ask<std::uintmax_t>([bytes, files] {
    std::uintmax_t all = bytes;
    for (const auto& file : files)
      if (struct stat info{}; ::fstat(file->get(), &info) == 0) all += static_cast<std::uintmax_t>(info.st_size);
    return all;
  });
}

void Output::after_all(std::function<void()> then) {
  if (!threads_) return then();
  then_ = std::move(then);
  threads_->finish([this, threads = threads_.get()] { threads->post([this] { all_shown(); }); });
  watch_for_stall(0, 0);
}

// Both terminals have shown everything, or the wait is over.
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
  for (const std::string& text : is_read ? threads_->take_losses() : std::vector<std::string>{}) log_.warning(text);
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
