#include "lib/link/store_waiters.hpp"

#include <algorithm>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

void StoreWaiters::add(const WaiterId& id, StoreRequest request, Instant now, StoreScope scope) {
  request.wait = std::clamp(request.wait, Duration{0}, store_wait_max);
  StoreWaiter waiter{std::move(request), {}, scope, {}};
  waiter.until = now + waiter.request.wait;
  bytes_ += held_by(waiter.request);
  expiries_.emplace(waiter.until, id);
  ELRUN_ASSERT(waiters_.emplace(id, std::move(waiter)).second);
}

void StoreWaiters::park(const WaiterId& id, std::size_t key) {
  StoreWaiter& waiter = waiters_.at(id);
  unpark(id, waiter);
  waiter.parked_at = key;
  parked_[waiter.request.keys[key]].insert(id);
}

void StoreWaiters::unpark(const WaiterId& id, const StoreWaiter& waiter) {
  if (!waiter.parked_at) return;
  const auto parked = parked_.find(waiter.request.keys[*waiter.parked_at]);
  parked->second.erase(id);
  if (parked->second.empty()) parked_.erase(parked);
}

StoreWaiter StoreWaiters::release(const WaiterId& id) {
  StoreWaiter waiter = std::move(waiters_.extract(id).mapped());
  expiries_.erase({waiter.until, id});
  bytes_ -= held_by(waiter.request);
  unpark(id, waiter);
  return waiter;
}

std::vector<WaiterId> StoreWaiters::of(StoreCaller caller) const {
  std::vector<WaiterId> ids;
  for (auto at = waiters_.lower_bound({caller, 0}); at != waiters_.end() && at->first.first == caller; ++at) ids.push_back(at->first);
  return ids;
}

std::vector<WaiterId> StoreWaiters::of(StoreScope scope) const {
  std::vector<WaiterId> ids;
  for (const auto& [id, waiter] : waiters_)
    if (waiter.scope == scope) ids.push_back(id);
  return ids;
}

std::vector<WaiterId> StoreWaiters::parked_at(const std::string& key) const {
  const auto parked = parked_.find(key);
  if (parked == parked_.end()) return {};
  return {parked->second.begin(), parked->second.end()};
}

std::vector<WaiterId> StoreWaiters::late(Instant now) const {
  std::vector<WaiterId> ids;
  for (auto at = expiries_.begin(); at != expiries_.end() && at->first <= now; ++at) ids.push_back(at->second);
  return ids;
}

std::optional<Instant> StoreWaiters::next_expiry() const {
  if (expiries_.empty()) return {};
  return expiries_.begin()->first;
}

}  // namespace elrun::inline v0
