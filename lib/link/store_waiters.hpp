#pragma once
/// \file StoreWaiters: the calls of a store that wait. Pure.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/base/planted.hpp"
#include "lib/link/store_call.hpp"

namespace elrun::inline v0 {

/// A caller and the id of its call.
using WaiterId = std::pair<StoreCaller, std::uint64_t>;

struct StoreWaiter {
  StoreRequest request;
  Instant until;
  StoreScope scope;
  std::optional<std::size_t> parked_at;  ///< get, wait, watch: which of its keys; when it changes the waiter is looked at again
};

static_assert(2 * sizeof(StoreWaiter) <= store_call_overhead);

/// Found by caller, by scope, by deadline, and by the one key at which each is parked. A value; it judges nothing.
class StoreWaiters {
 public:
  [[nodiscard]] bool contains(const WaiterId& id) const { return waiters_.contains(id); }
  [[nodiscard]] const StoreWaiter& at(const WaiterId& id) const { return waiters_.at(id); }
  [[nodiscard]] std::size_t size() const { return waiters_.size(); }
  /// What they hold (`held_by`).
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  /// From `now` for as long as the request says, `store_wait_max` at most. There is none of this id.
  void add(const WaiterId& id, StoreRequest request, Instant now, StoreScope scope);
  /// At this one of its keys, and at no other any more.
  void park(const WaiterId& id, std::size_t key);
  /// It waits no longer.
  StoreWaiter release(const WaiterId& id);

  [[nodiscard]] std::vector<WaiterId> of(StoreCaller caller) const;
  [[nodiscard]] std::vector<WaiterId> of(StoreScope scope) const;
  [[nodiscard]] std::vector<WaiterId> parked_at(const std::string& key) const;
  /// Whose time is over, the first one first.
  [[nodiscard]] std::vector<WaiterId> late(Instant now) const;
  [[nodiscard]] std::optional<Instant> next_expiry() const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  void unpark(const WaiterId& id, const StoreWaiter& waiter);

  std::map<WaiterId, StoreWaiter> waiters_;
  std::set<std::pair<Instant, WaiterId>> expiries_;
  std::unordered_map<std::string, std::set<WaiterId>> parked_;
  std::uint64_t bytes_ = 0;
};

}  // namespace elrun::inline v0
