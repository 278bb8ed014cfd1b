#include "lib/base/timed_files.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {

using Steady = std::chrono::steady_clock;

Result<StorageLimits> storage_limits(std::string_view of_environment) {
  if (of_environment.empty()) return StorageLimits{};
  std::uint32_t limit = 0;
  const char* const end = of_environment.data() + of_environment.size();
  if (const auto read = std::from_chars(of_environment.data(), end, limit); read.ec == std::errc{} && read.ptr == end && limit > 0)
    return StorageLimits{.operation = std::chrono::seconds{limit}};
  return invalid(fmt::format(
      "ELRUN_STORAGE_LIMIT={} is no number of seconds from 1 on: how long one operation on a checkpoint root may take", of_environment));
}

/// The threads that operations run on. They hold it, and it outlives a TimedFiles by those that are stuck.
class TimedFiles::Helpers : public std::enable_shared_from_this<TimedFiles::Helpers> {
 public:
  explicit Helpers(StorageLimits limits) : limits_{limits} {}

  /// `is_given_up`: set where the operation was begun and is not over in time. `what`: "sync /root/file". `bytes`: that it moves. `call` runs on another thread, and may outlive this call: it owns all that it touches.
  template <class T>
  Result<T> run(std::string what, std::uint64_t bytes, std::function<Result<T>()> call, std::atomic<bool>* is_given_up = nullptr) {
    auto answer = std::make_shared<std::optional<Result<T>>>();
    auto task = std::make_shared<Task>();
    task->what = std::move(what);
    task->call = [answer, call = std::move(call)] {
      try {
        answer->emplace(call());
      } catch (const std::exception& error) {  // std::bad_alloc
        answer->emplace(Failure{Code::exhausted, Remedy::retry, error.what()});
      }
    };
    std::unique_lock lock{mutex_};
    if (const Task* const stuck = oldest_stuck()) return hangs(*stuck, task->what);
    task->begun = Steady::now();
    const Duration limit =
        std::min(limits_.limit_of(bytes), until_ ? std::chrono::duration_cast<Duration>(*until_ - task->begun) : Duration::max());
    if (limit <= Duration{0})
      return Failure{Code::deadline_passed, Remedy::retry,
                     fmt::format("there was no time left for \"{}\": the storage is slow", task->what)};
    ++begun_;
    under_way_.push_back(task);
    if (!give(task)) {
      lock.unlock();
      task->call();  // no thread can be started: better an operation without a deadline than none
      lock.lock();
      std::erase(under_way_, task);
      return std::move(**answer);
    }
    const bool is_over = task->over.wait_for(lock, limit, [&] { return task->is_over; });
    std::erase(under_way_, task);
    if (is_over) return std::move(**answer);
    task->is_given_up = true;
    if (is_given_up != nullptr) *is_given_up = true;
    stuck_.push_back(task);
    return Failure{Code::deadline_passed, Remedy::retry,
                   fmt::format("{} has not returned for {}: the storage hangs. Is its server there, and the network to it?", task->what,
                               for_people(limit))};
  }

  /// For what may wait for the storage and whose end nobody needs: a file is closed.
  void let_go(std::function<void()> call) {
    auto task = std::make_shared<Task>();
    task->what = "close";
    task->call = std::move(call);
    task->is_close = true;
    const std::lock_guard lock{mutex_};
    left_.push_back(std::move(task));
    close_files();
  }

  [[nodiscard]] const StorageLimits& limits() const { return limits_; }
  void set_time_left(std::optional<Duration> time) {
    const std::lock_guard lock{mutex_};
    until_ = time ? std::optional{Steady::now() + *time} : std::nullopt;
  }

  [[nodiscard]] StorageActivity activity() {
    const std::lock_guard lock{mutex_};
    StorageActivity now{.begun = begun_, .longest = {}, .limit = limits_.longest()};
    const Task* longest = nullptr;
    for (const auto* tasks : {&stuck_, &under_way_})
      for (const auto& task : *tasks)
        if (longest == nullptr || task->begun < longest->begun) longest = task.get();
    if (longest != nullptr)
      now.longest = longest->what, now.for_long = std::chrono::duration_cast<Duration>(Steady::now() - longest->begun);
    return now;
  }

  /// In a forked child there are no threads, and what they waited in or held is not to be touched: it would wait for them. They hold this object there for good.
  void end() {
    if (::getpid() != owner_) return;
    const std::lock_guard lock{mutex_};
    is_over_ = true;
    changed_.notify_all();
  }

 private:
  struct Task {
    std::string what;
    std::function<void()> call;
    Steady::time_point begun{};
    std::condition_variable over;
    bool is_over = false, is_given_up = false, is_close = false;
  };

  [[nodiscard]] const Task* oldest_stuck() const { return stuck_.empty() ? nullptr : stuck_.front().get(); }
  [[nodiscard]] static Failure hangs(const Task& stuck, const std::string& what) {
    return {
        Code::deadline_passed, Remedy::retry,
        fmt::format("the storage hangs: {} has not returned for {}, so \"{}\" was not begun. Is its server there, and the network to it?",
                    stuck.what, for_people(std::chrono::duration_cast<Duration>(Steady::now() - stuck.begun)), what)};
  }

  /// A few at a time, and none while the storage hangs: each may hold a thread for ever.
  void close_files() {
    while (!left_.empty() && stuck_.empty() && closing_ < closes_max && give(left_.back())) {
      ++closing_;
      left_.pop_back();
    }
  }

  /// To a thread that waits, else to a new one; false: there is none. The lock is held.
  bool give(const std::shared_ptr<Task>& task) {
    tasks_.push_back(task);
    if (tasks_.size() <= idle_) return changed_.notify_one(), true;
    try {
      quiet_thread([self = shared_from_this()] { self->work(); }).detach();
      return true;
    } catch (const std::exception&) {
      std::erase(tasks_, task);
      return false;
    }
  }

  void work() {
    for (std::unique_lock lock{mutex_};;) {
      ++idle_;
      changed_.wait(lock, [&] { return is_over_ || !tasks_.empty(); });
      --idle_;
      if (tasks_.empty()) return;
      const std::shared_ptr<Task> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task->call();
      task->call = {};  // here, for it may close a file
      lock.lock();
      task->is_over = true;
      task->over.notify_all();
      if (task->is_given_up) std::erase(stuck_, task);
      if (task->is_close) --closing_;
      close_files();
    }
  }

  static constexpr std::size_t closes_max = 16;

  const StorageLimits limits_;
  const pid_t owner_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> tasks_;       // not begun
  std::vector<std::shared_ptr<Task>> under_way_;  // somebody waits for them
  std::vector<std::shared_ptr<Task>> stuck_;      // given up, the oldest first
  std::vector<std::shared_ptr<Task>> left_;       // files to close
  std::uint64_t begun_ = 0;                       // operations but for closes
  std::size_t closing_ = 0;
  std::size_t idle_ = 0;
  bool is_over_ = false;
  std::optional<Steady::time_point> until_{};  // for all operations together
};

namespace {

constexpr std::size_t read_bytes_max = 4u << 20;  // in one operation, as a copy

/// A file of the wrapped storage. Nobody but helpers touches it; the last one closes it.
template <class File>
class InnerFile {
 public:
  InnerFile(std::shared_ptr<TimedFiles::Helpers> helpers, std::shared_ptr<File> file, const Path& path)
      : helpers_{std::move(helpers)}, file_{std::move(file)}, path_{path.string()} {}
  InnerFile(const InnerFile&) = delete;
  InnerFile& operator=(const InnerFile&) = delete;
  ~InnerFile() {
    try {
      helpers_->let_go([file = std::move(file_)]() mutable { file.reset(); });
    } catch (const std::exception&) {  // no memory to hand it over: it was closed here
    }
  }
  template <class T>
  Result<T> run(const char* verb, std::uint64_t bytes, std::function<Result<T>(File&)> call) {
    if (is_dead_)
      return Failure{Code::deadline_passed, Remedy::retry,
                     fmt::format("{} {}: an operation on this file was given up before", verb, path_)};
    return helpers_->run<T>(
        fmt::format("{} {}", verb, path_), bytes, [file = file_, call = std::move(call)] { return call(*file); }, &is_dead_);
  }

 private:
  std::shared_ptr<TimedFiles::Helpers> helpers_;
  std::shared_ptr<File> file_;
  std::string path_;
  std::atomic<bool> is_dead_{false};
};

class TimedWritable final : public WritableFile {
 public:
  TimedWritable(std::shared_ptr<TimedFiles::Helpers> helpers, std::shared_ptr<WritableFile> file, const Path& path)
      : file_{file.get()},
        at_once_{std::max<std::uint64_t>(1, helpers->limits().at_once.value())},
        inner_{std::move(helpers), std::move(file), path} {}
  [[nodiscard]] bool likes_aligned() const override { return file_->likes_aligned(); }  // it knows, and asks nobody
  Result<void> write_at(std::uint64_t offset, ByteSpan data) override {
    while (!data.empty()) {
      const ByteSpan now = data.first(std::min<std::uint64_t>(data.size(), at_once_));
      const bool is_due = (unsynced_ += now.size()) >= at_once_;
      ELRUN_TRY(inner_.run<void>("write", now.size(), [=](WritableFile& file) { return file.write_at(offset, now); }));
      if (is_due) ELRUN_TRY(sync());
      data = data.subspan(now.size());
      offset += now.size();
    }
    return {};
  }
  Result<void> reserve(Bytes size) override {
    return inner_.run<void>("reserve space for", size.value(), [=](WritableFile& file) { return file.reserve(size); });
  }
  Result<void> sync() override {
    return inner_.run<void>("sync", unsynced_.exchange(0), [](WritableFile& file) { return file.sync(); });
  }
  Result<void> close() override {
    return inner_.run<void>("close", unsynced_, [](WritableFile& file) { return file.close(); });
  }

 private:
  const WritableFile* const file_;  // alive as long as `inner_`
  const std::uint64_t at_once_;
  InnerFile<WritableFile> inner_;
  std::atomic<std::uint64_t> unsynced_{0};
};

class TimedReadable final : public ReadableFile {
 public:
  TimedReadable(std::shared_ptr<TimedFiles::Helpers> helpers, std::shared_ptr<ReadableFile> file, const Path& path)
      : inner_{std::move(helpers), std::move(file), path} {}
  Result<std::uint64_t> size() override {
    return inner_.run<std::uint64_t>("stat", 0, [](ReadableFile& file) { return file.size(); });
  }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const std::size_t bytes = std::min(out.size(), read_bytes_max);
      const std::shared_ptr<Buffer> buffer = take_buffer(bytes);
      if (buffer == nullptr) return Failure{Code::exhausted, Remedy::retry, "there is no memory on the host to read from the storage"};
      ELRUN_TRY(inner_.run<void>("read", bytes, [=](ReadableFile& file) { return file.read_at(offset, {buffer->get(), bytes}); }));
      std::memcpy(out.data(), buffer->get(), bytes);
      give_back(buffer);
      out = out.subspan(bytes);
      offset += bytes;
    }
    return {};
  }

 private:
  static constexpr std::align_val_t alignment{4096};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, alignment); }
  };
  struct Buffer : std::unique_ptr<std::byte, Free> {
    std::size_t size = 0;
  };

  /// Nothing: there is no memory.
  std::shared_ptr<Buffer> take_buffer(std::size_t bytes) {
    {
      const std::lock_guard lock{mutex_};
      if (!spare_.empty() && spare_.back()->size >= bytes) {
        const std::shared_ptr<Buffer> buffer = std::move(spare_.back());
        spare_.pop_back();
        return buffer;
      }
    }
    auto buffer = std::make_shared<Buffer>();
    buffer->reset(static_cast<std::byte*>(::operator new(bytes, alignment, std::nothrow)));
    buffer->size = bytes;
    return *buffer ? buffer : nullptr;
  }
  void give_back(std::shared_ptr<Buffer> buffer) {
    const std::lock_guard lock{mutex_};
    if (spare_.size() < 8) spare_.push_back(std::move(buffer));
  }

  InnerFile<ReadableFile> inner_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Buffer>> spare_;
};

}  // namespace

TimedFiles::TimedFiles(std::shared_ptr<Files> inner, StorageLimits limits)
    : inner_{std::move(inner)}, helpers_{std::make_shared<Helpers>(limits)} {}
TimedFiles::~TimedFiles() { helpers_->end(); }

Result<std::unique_ptr<WritableFile>> TimedFiles::create(const Path& path) {
  using Made = std::shared_ptr<WritableFile>;
  ELRUN_TRY_ASSIGN(Made file, helpers_->run<Made>("create " + path.string(), 0, [inner = inner_, path]() -> Result<Made> {
    ELRUN_TRY_ASSIGN(auto made, inner->create(path));
    return Made{made.release(), [inner](WritableFile* last) { delete last; }};  // a stuck file has its storage with it
  }));
  return std::unique_ptr<WritableFile>{std::make_unique<TimedWritable>(helpers_, std::move(file), path)};
}
Result<std::unique_ptr<ReadableFile>> TimedFiles::open(const Path& path) {
  using Opened = std::shared_ptr<ReadableFile>;
  ELRUN_TRY_ASSIGN(Opened file, helpers_->run<Opened>("open " + path.string(), 0, [inner = inner_, path]() -> Result<Opened> {
    ELRUN_TRY_ASSIGN(auto opened, inner->open(path));
    return Opened{opened.release(), [inner](ReadableFile* last) { delete last; }};
  }));
  return std::unique_ptr<ReadableFile>{std::make_unique<TimedReadable>(helpers_, std::move(file), path)};
}
Result<void> TimedFiles::link(const Path& from, const Path& to) {
  return helpers_->run<void>("link " + to.string(), 0, [inner = inner_, from, to] { return inner->link(from, to); });
}
Result<void> TimedFiles::rename(const Path& from, const Path& to) {
  return helpers_->run<void>("rename to " + to.string(), 0, [inner = inner_, from, to] { return inner->rename(from, to); });
}
Result<void> TimedFiles::remove_file(const Path& path) {
  return helpers_->run<void>("remove " + path.string(), 0, [inner = inner_, path] { return inner->remove_file(path); });
}
Result<void> TimedFiles::make_directory(const Path& path) {
  return helpers_->run<void>("make directory " + path.string(), 0, [inner = inner_, path] { return inner->make_directory(path); });
}
Result<void> TimedFiles::remove_directory(const Path& path) {
  return helpers_->run<void>("remove directory " + path.string(), 0, [inner = inner_, path] { return inner->remove_directory(path); });
}
Result<std::vector<std::string>> TimedFiles::list(const Path& path) {
  return helpers_->run<std::vector<std::string>>("list " + path.string(), 0, [inner = inner_, path] { return inner->list(path); });
}
Result<void> TimedFiles::sync_directory(const Path& path) {
  return helpers_->run<void>("sync directory " + path.string(), 0, [inner = inner_, path] { return inner->sync_directory(path); });
}
Result<Bytes> TimedFiles::space_left(const Path& path) {
  return helpers_->run<Bytes>("ask for the space left at " + path.string(), 0, [inner = inner_, path] { return inner->space_left(path); });
}
std::string TimedFiles::missing_mount(const Path& path) {
  const auto said = helpers_->run<std::string>("look for the mount of " + path.string(), 0,
                                               [inner = inner_, path] { return Result<std::string>{inner->missing_mount(path)}; });
  return said.ok() ? *said : std::string{};
}
StorageActivity TimedFiles::activity() { return helpers_->activity(); }
void TimedFiles::set_time_left(std::optional<Duration> time) { helpers_->set_time_left(time); }

}  // namespace elrun::inline v0
