#include "lib/comm/nccl/mailbox.hpp"

#include <utility>

namespace elrun::inline v0 {

// ---- users

Result<void> OwnerMailbox::post(const std::shared_ptr<Request>& request) {
  {
    const std::lock_guard lock{mutex_};
    if (ended_) return *failure_;
    requests_.push_back(request);
  }
  changed_.notify_all();
  return {};
}

bool OwnerMailbox::withdraw(const std::shared_ptr<Request>& request) {
  const std::lock_guard lock{mutex_};
  if (request->issued) return false;
  std::erase(requests_, request);
  return true;
}

void OwnerMailbox::revoke(const Failure& why) {
  {
    const std::lock_guard lock{mutex_};
    if (over_) return;
    over_ = why;
  }
  changed_.notify_all();
}

void OwnerMailbox::ask_to_close(const Close& close) {
  {
    const std::lock_guard lock{mutex_};
    close_ = close;
  }
  changed_.notify_all();
}

Result<void> OwnerMailbox::outcome() const {
  if (ended_ && !closed_well_) return *failure_;
  return {};
}

template <class Condition>
std::optional<Result<void>> OwnerMailbox::wait(Duration most, const Condition& condition) {
  std::unique_lock lock{mutex_};
  if (!changed_.wait_for(lock, most, condition)) return std::nullopt;
  return outcome();
}

std::optional<Result<void>> OwnerMailbox::wait_until_made(Duration most) {
  return wait(most, [&] { return made_ || ended_; });
}
std::optional<Result<void>> OwnerMailbox::wait_until_issued(const Request& request, Duration most) {
  return wait(most, [&] { return request.issued; });
}
std::optional<Result<void>> OwnerMailbox::wait_until_ended(Duration most) {
  return wait(most, [&] { return ended_; });
}

// ---- the owner

OwnerMailbox::Said OwnerMailbox::said() const {
  const std::lock_guard lock{mutex_};
  return {over_, abort_returned_};
}

OwnerMailbox::Order OwnerMailbox::take(bool idle) {
  const std::lock_guard lock{mutex_};
  if (over_) return {};
  Order out{.close = close_};
  if (!requests_.empty()) {
    out.request = std::move(requests_.front());
    requests_.pop_front();
  } else if (idle) {
    close_.reset();
  }
  return out;
}

void OwnerMailbox::made() {
  {
    const std::lock_guard lock{mutex_};
    made_ = true;
  }
  changed_.notify_all();
}

void OwnerMailbox::issued(Request& request, const std::optional<Failure>& failure) {
  if (failure) request.promise.end(*failure);
  {
    const std::lock_guard lock{mutex_};
    request.issued = true;
  }
  changed_.notify_all();
}

void OwnerMailbox::abort_returned() {
  {
    const std::lock_guard lock{mutex_};
    abort_returned_ = true;
  }
  changed_.notify_all();
}

void OwnerMailbox::rest(const WakeUp& wake_up, std::optional<Duration> most) {
  std::unique_lock lock{mutex_};
  const auto wanted = [&] {
    return (wake_up.at_revocation && over_) || (wake_up.at_return_of_abort && abort_returned_) ||
           (wake_up.at_request && !requests_.empty()) || (wake_up.at_close && close_);
  };
  if (most) changed_.wait_for(lock, *most, wanted);
  else changed_.wait(lock, wanted);
}

void OwnerMailbox::end(const Failure& why, bool well) {
  std::deque<std::shared_ptr<Request>> rest;
  {
    const std::lock_guard lock{mutex_};
    failure_ = why;
    closed_well_ = well;
    rest.swap(requests_);
  }
  for (const auto& each : rest) issued(*each, why);
  {
    const std::lock_guard lock{mutex_};
    ended_ = true;
    for (const auto& each : requests_) each->issued = true, each->promise.end(why);
    requests_.clear();
  }
  changed_.notify_all();
}

}  // namespace elrun::inline v0
