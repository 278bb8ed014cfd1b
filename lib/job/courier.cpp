#include "lib/job/courier.hpp"

#include <cfenv>

#include "lib/base/quiet_thread.hpp"

namespace elrun::inline v0 {

Courier::~Courier() {
  if (!thread_.joinable()) return;
  if (::getpid() != owner_) {  // a forked child: the thread is the parent's
    (void)new std::thread{std::move(thread_)};
    (void)meeting_.release();
    return;
  }
  {
    const std::lock_guard lock{meeting_->mutex};
    stops_ = true;
    if (under_way_) tasks_.give_up();
    meeting_->work.notify_one();
  }
  thread_.join();
}

void Courier::work_alone() {
  if (!thread_.joinable()) thread_ = quiet_thread([this] { run(); });
}

void Courier::begin_anew(std::size_t units) {
  std::unique_lock lock{meeting_->mutex};
  meeting_->done.wait(lock, [this] { return !under_way_; });
  if (thrown_) std::rethrow_exception(thrown_);
  errands_ = Errands{units};
  failed_ = false;
}

void Courier::round(std::unique_lock<std::mutex>& lock) {
  const Need mine = errands_.say();
  under_way_ = true;
  lock.unlock();
  std::optional<Heard> heard;
  std::exception_ptr thrown;
  // What is folded has the same bits on either thread, whatever a slot told the job's; which of them folds is chance.
  std::fenv_t threads_own;
  std::fegetenv(&threads_own);
  std::fesetenv(FE_DFL_ENV);
  try {
    heard = tasks_.round(mine);
  } catch (...) {
    thrown = std::current_exception();
  }
  std::fesetenv(&threads_own);
  lock.lock();
  under_way_ = false;
  thrown_ = std::move(thrown);
  failed_ = !heard.has_value();
  if (heard)
    errands_.heard(heard->by_rank, heard->me);
  else
    errands_.lost();
  meeting_->done.notify_one();
}

void Courier::run() {
  std::unique_lock lock{meeting_->mutex};
  for (;;) {
    meeting_->work.wait(lock, [this] { return stops_ || has_work(); });
    if (stops_) return;
    round(lock);
  }
}

}  // namespace elrun::inline v0
