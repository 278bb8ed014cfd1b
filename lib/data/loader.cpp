// Batches wait in a fixed set of buffers: one is in use by the caller, at most one that nobody wants any more is still
// being filled, and the rest are read, or to be read, ahead. So a buffer is always free for what was not foreseen.

#include <elrun/loader.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include <unistd.h>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t alignment = 64, ahead_max = 1024, bytes_max = std::size_t{1} << 40;

struct Buffer {
  enum class State { free, queued, filling, ready, in_use };
  State state = State::free;
  BatchLoader::Ids ids;
  std::span<std::byte> memory;
  std::uint64_t turn = 0;      // the order of what is queued
  std::exception_ptr failure;  // of a fetch, for the get that asks for it
};

bool same(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b) { return std::ranges::equal(a, b); }

}  // namespace

class BatchLoader::Impl {
 public:
  Impl(const Options& options, Fetch fetch, Next next)
      : item_bytes_{options.item_bytes}, ahead_{options.ahead}, fetch_{std::move(fetch)}, next_{std::move(next)} {
    if (item_bytes_ == 0 || options.items_max == 0 || ahead_ > ahead_max || options.items_max > bytes_max / item_bytes_ / (ahead_ + 2))
      throw Error{invalid(
          fmt::format("a loader of {} items of {} bytes, {} batches ahead: items and bytes are at least 1, batches ahead at most {}, and "
                      "all memory together below 1 TiB",
                      options.items_max, item_bytes_, ahead_, ahead_max))};
    const std::size_t each = (item_bytes_ * options.items_max + alignment - 1) / alignment * alignment;
    memory_.reset(static_cast<std::byte*>(::operator new (each*(ahead_ + 2), std::align_val_t{alignment})));
    buffers_.resize(ahead_ + 2);
    for (std::size_t b = 0; b < buffers_.size(); ++b) {
      buffers_[b].memory = {memory_.get() + b * each, item_bytes_ * options.items_max};
      buffers_[b].ids.reserve(options.items_max);
    }
    if (ahead_ > 0) thread_ = quiet_thread([this] { read_ahead(); });
  }
  ~Impl() {
    if (!thread_.joinable()) return;
    if (is_forked()) {
      (void)meeting_.release();
      join_or_leak(thread_, owner_);
      return;
    }
    {
      const std::lock_guard lock{meeting_->mutex};
      stop_ = true;
    }
    meeting_->changed.notify_all();
    thread_.join();
  }

  std::span<const std::byte> get(std::span<const std::uint64_t> ids) {
    if (ids.size() * item_bytes_ > buffers_[0].memory.size())
      throw Error{
          invalid(fmt::format("a batch of {} samples is asked of a loader for {}", ids.size(), buffers_[0].memory.size() / item_bytes_))};
    if (thread_.joinable() && is_forked())
      throw Error{
          {Code::refused, Remedy::exit_process,
           fmt::format("this process was forked from process {}, whose loader's thread is not here; make a loader in this one", owner_)}};
    const std::vector<Ids> coming = ahead_ > 0 ? next_(ahead_) : std::vector<Ids>{};
    std::unique_lock lock{meeting_->mutex};
    forget(ids, coming);
    Buffer& mine = claim(ids);
    queue(coming);
    if (mine.state == Buffer::State::filling) meeting_->changed.wait(lock, [&] { return mine.state != Buffer::State::filling; });
    const bool here = mine.state == Buffer::State::in_use;
    mine.state = Buffer::State::in_use;
    lock.unlock();
    if (here) fill(mine, [] { return false; });
    if (mine.failure != nullptr) std::rethrow_exception(mine.failure);
    return mine.memory.first(ids.size() * item_bytes_);
  }
  [[nodiscard]] std::uint64_t foreseen() const { return foreseen_; }

 private:
  [[nodiscard]] bool is_forked() const { return ::getpid() != owner_; }
  /// Frees the batch that was in use, and those which nobody will ask for now.
  void forget(std::span<const std::uint64_t> ids, const std::vector<Ids>& coming) {
    for (Buffer& b : buffers_) {
      const bool waits = b.state == Buffer::State::queued || b.state == Buffer::State::ready;
      const auto is_it = [&](const Ids& list) { return same(list, b.ids); };
      if (b.state == Buffer::State::in_use || (waits && !same(b.ids, ids) && std::ranges::none_of(coming, is_it)))
        b.state = Buffer::State::free;
    }
  }
  [[nodiscard]] Buffer* find(std::span<const std::uint64_t> ids) {
    for (Buffer& b : buffers_)
      if (b.state != Buffer::State::free && same(b.ids, ids)) return &b;
    return nullptr;
  }
  [[nodiscard]] Buffer* take_free(std::span<const std::uint64_t> ids) {
    const auto b = std::ranges::find(buffers_, Buffer::State::free, &Buffer::state);
    if (b == buffers_.end()) return nullptr;
    b->ids.assign(ids.begin(), ids.end());
    b->failure = nullptr;
    return &*b;
  }
  /// The buffer for `ids`: `filling` or `ready` when the thread has it, else `in_use`, for the caller to fill.
  Buffer& claim(std::span<const std::uint64_t> ids) {
    Buffer* found = find(ids);
    if (found != nullptr && found->state != Buffer::State::queued) return ++foreseen_, *found;
    if (found == nullptr) found = take_free(ids);
    ELRUN_ASSERT(found != nullptr);
    found->state = Buffer::State::in_use;
    return *found;
  }
  void queue(const std::vector<Ids>& coming) {
    for (const Ids& list : coming) {
      if (list.size() * item_bytes_ > buffers_[0].memory.size() || find(list) != nullptr) continue;
      Buffer* const b = take_free(list);
      if (b == nullptr) break;
      b->state = Buffer::State::queued, b->turn = ++turns_;
    }
    meeting_->changed.notify_all();
  }
  template <class Stop>
  void fill(Buffer& b, Stop stop) {
    try {
      for (std::size_t i = 0; i < b.ids.size() && !stop(); ++i) {
        const std::span<std::byte> item = b.memory.subspan(i * item_bytes_, item_bytes_);
        std::memset(item.data(), 0, item.size());  // what a fetch leaves out is not what lay here before
        fetch_(b.ids[i], item);
      }
    } catch (...) {
      b.failure = std::current_exception();
    }
  }
  void read_ahead() {
    std::unique_lock lock{meeting_->mutex};
    for (;;) {
      Buffer* first = nullptr;
      meeting_->changed.wait(lock, [&] {
        first = nullptr;
        for (Buffer& b : buffers_)
          if (b.state == Buffer::State::queued && (first == nullptr || b.turn < first->turn)) first = &b;
        return stop_ || first != nullptr;
      });
      if (stop_) return;
      first->state = Buffer::State::filling;
      lock.unlock();
      fill(*first, [this] {
        const std::lock_guard again{meeting_->mutex};
        return stop_;
      });
      lock.lock();
      first->state = Buffer::State::ready;
      meeting_->changed.notify_all();
    }
  }

  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{alignment}); }
  };
  const std::size_t item_bytes_, ahead_;
  const Fetch fetch_;
  const Next next_;
  std::unique_ptr<std::byte, Free> memory_;
  const pid_t owner_ = ::getpid();
  /// What both threads use. After fork, the child leaks this object on purpose: its mutex may be locked for ever, and destroying a condition variable that has a
  /// waiter would never return.
  struct Meeting {
    std::mutex mutex;  // over states, ids and turns; who fills a buffer owns its memory and its failure
    std::condition_variable changed;
  };
  std::unique_ptr<Meeting> meeting_ = std::make_unique<Meeting>();
  std::vector<Buffer> buffers_;
  std::uint64_t turns_ = 0, foreseen_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

BatchLoader::BatchLoader(const Options& options, Fetch fetch, Next next)
    : impl_{std::make_unique<Impl>(options, std::move(fetch), std::move(next))} {}
BatchLoader::BatchLoader(BatchLoader&&) noexcept = default;
BatchLoader::~BatchLoader() = default;

std::span<const std::byte> BatchLoader::get(std::span<const std::uint64_t> ids) { return impl_->get(ids); }
std::uint64_t BatchLoader::foreseen() const { return impl_->foreseen(); }

}  // namespace elrun::inline v0
