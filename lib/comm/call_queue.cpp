#include "lib/comm/call_queue.hpp"

#include <exception>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/quiet_thread.hpp"
#include "lib/base/wait_time.hpp"
#include "lib/comm/owner.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t waiting_max = 4096;

}  // namespace

Work::Work(std::shared_ptr<State> state) : state_{std::move(state)} {}

bool Work::done() const {
  const std::lock_guard lock{state_->mutex};
  return state_->done;
}

Result<void> Work::wait(Deadline deadline) const {
  const SteadyClock clock;
  std::unique_lock lock{state_->mutex};
  if (state_->changed.wait_for(lock, wait_time(deadline, clock.now()), [&] { return state_->done; })) return state_->result;
  return Failure{Code::deadline_passed, Remedy::retry, "the call is still under way; it ends by its own deadline"};
}

void WorkPromise::end(Result<void> result) const {
  {
    const std::lock_guard lock{state_->mutex};
    state_->result = std::move(result);
    state_->done = true;
  }
  state_->changed.notify_all();
}

CallQueue::~CallQueue() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Work CallQueue::begin(Call call) {
  WorkPromise promise;
  if (auto mine = check_owner(owner_); !mine.ok()) {
    promise.end(std::move(mine));
    return promise.work();
  }
  {
    const std::lock_guard lock{mutex_};
    if (waiting_.size() >= waiting_max) {
      promise.end(Failure{Code::exhausted, Remedy::retry, fmt::format("{} calls wait already: wait for some of them first", waiting_max)});
      return promise.work();
    }
  }
  if (!thread_.joinable()) thread_ = quiet_thread([this] { run(); });  // if it does not start, nothing was begun
  {
    const std::lock_guard lock{mutex_};
    waiting_.push_back({std::move(call), promise});
  }
  changed_.notify_all();
  return promise.work();
}

bool CallQueue::idle() {
  if (!thread_.joinable()) return true;
  const std::lock_guard lock{mutex_};
  return waiting_.empty() && !running_;
}

Result<void> CallQueue::result_of(const Work& work) {
  std::unique_lock lock{work.state_->mutex};
  work.state_->changed.wait(lock, [&] { return work.state_->done; });  // the call keeps its own deadline
  return work.state_->result;
}

/// Nobody catches what leaves a thread: the process would end. Where there is no memory, not even the words can be had.
Result<void> CallQueue::make(const Call& call) try { return call(); } catch (const std::exception& error) {
  Failure failure{.code = Code::exhausted, .remedy = Remedy::exit_process};
  try {
    failure.what = fmt::format("a call was left half way by an exception: {}", error.what());
    if (broken_) broken_(failure);
  } catch (const std::exception&) {  // the group stands: its peers' deadlines end it
  }
  return failure;
}

void CallQueue::run() {
  std::unique_lock lock{mutex_};
  for (;;) {
    changed_.wait(lock, [&] { return !waiting_.empty() || over_; });
    if (waiting_.empty()) return;
    Entry entry = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = true;
    lock.unlock();
    Result<void> result = make(entry.call);
    // First idle, then done: who has waited for a call finds the thread free.
    lock.lock();
    running_ = false;
    lock.unlock();
    entry.promise.end(std::move(result));
    lock.lock();
  }
}

}  // namespace elrun::inline v0
