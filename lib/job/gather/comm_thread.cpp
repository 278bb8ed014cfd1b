#include "lib/job/gather/comm_thread.hpp"

#include <exception>

#include "lib/base/quiet_thread.hpp"
#include "lib/job/fp_environment.hpp"

namespace elrun::inline v0 {

CommThread::~CommThread() {
  if (!thread_.joinable()) return;
  if (::getpid() != owner_) {  // a forked child: the thread is the parent's
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    (void)new std::thread{std::move(thread_)};
    (void)meeting_.release();
    return;
  }
  {
    const std::lock_guard lock{meeting_->mutex};
    stops_ = true;
    if (under_way_) tasks_.give_up("the job was given up while ranks did something for each other");
    meeting_->work.notify_one();
  }
  thread_.join();
}

void CommThread::work_alone() {
  if (!thread_.joinable()) thread_ = quiet_thread([this] { run(); });
}

void CommThread::begin_anew(std::size_t units) {
  std::unique_lock lock{meeting_->mutex};
  while (under_way_) wait_for_round(lock);
  if (thrown_) std::rethrow_exception(thrown_);
  requests_ = PendingRequests{units};
  failed_ = false;
}

/// Time is counted in looks at the world: what this process slept through is no time of the round.
void CommThread::wait_for_round(std::unique_lock<std::mutex>& lock) {
  constexpr Duration look = 100ms;
  Duration waited{}, since_over{};
  while (!meeting_->done.wait_for(lock, look, [this] { return !under_way_; })) {
    if (tasks_.over()) {
      if ((since_over += look) >= tasks_.ends_within) tasks_.stuck();
    } else if ((waited += look) >= tasks_.limit() + tasks_.ends_within) {
      tasks_.give_up("a round has outlived its own deadline");
    }
  }
}

void CommThread::round(std::unique_lock<std::mutex>& lock) {
  const Need mine = requests_.say();
  under_way_ = true;
  lock.unlock();
  std::optional<Heard> heard;
  std::exception_ptr thrown;
  try {
    // What is folded has the same bits on either thread, whatever a slot told the job's; which of them folds is chance.
    const DefaultFpEnvironment as_anywhere;
    heard = tasks_.round(mine);
  } catch (const std::exception& error) {
    // The others hear of it now, not when this rank's program comes to its next call.
    thrown = std::current_exception();
    tasks_.give_up(error.what());
  } catch (...) {  // how tests end a process here: without a word to anybody
    thrown = std::current_exception();
  }
  lock.lock();
  under_way_ = false;
  thrown_ = std::move(thrown);
  failed_ = !heard.has_value();
  if (heard) requests_.heard(heard->by_rank, heard->me);
  else requests_.lost();
  meeting_->done.notify_one();
}

void CommThread::run() {
  std::unique_lock lock{meeting_->mutex};
  for (;;) {
    meeting_->work.wait(lock, [this] { return stops_ || has_work(); });
    if (stops_) return;
    round(lock);
  }
}

}  // namespace elrun::inline v0
