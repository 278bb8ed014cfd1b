#include "lib/comm/call_monitor.hpp"

#include <utility>

namespace elrun::inline v0 {

Result<void> CallMonitor::wait_until_connected() {
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return connected_ || failure_; });
  if (connected_) return {};
  return *failure_;
}

Result<void> CallMonitor::begin(bool in_frames) {
  const std::lock_guard lock{mutex_};
  if (failure_) return *failure_;
  call_ = in_frames ? Call::under_way : Call::over;
  call_succeeded_ = true;
  return {};
}

Result<void> CallMonitor::wait_for_end(bool succeeded) {
  std::unique_lock lock{mutex_};
  changed_.wait(lock, [&] { return call_ == Call::over && (succeeded || failure_); });
  if (failure_ && !(succeeded && call_succeeded_)) return *failure_;
  return {};
}

void CallMonitor::set_connected() {
  const std::lock_guard lock{mutex_};
  connected_ = true;
  changed_.notify_all();
}

void CallMonitor::end(bool success) {
  const std::lock_guard lock{mutex_};
  call_ = Call::over;
  call_succeeded_ = success;
  changed_.notify_all();
}

bool CallMonitor::fail(Failure failure) {
  const std::lock_guard lock{mutex_};
  if (failure_) return false;
  failure_ = std::move(failure);
  return true;
}

void CallMonitor::wake() {
  const std::lock_guard lock{mutex_};
  changed_.notify_all();
}

}  // namespace elrun::inline v0
