#include "launcher/supervise/deadlines.hpp"

#include <algorithm>
#include <utility>

namespace elrun::inline v0::launcher {
namespace {

constexpr Duration stall_least = 100ms;  // shorter delays are those of a busy machine
constexpr Duration stall_rests = 10s;    // between two compensations for stalls below the grace

constexpr bool rules_in_order_of_waits() {
  for (std::size_t i = 0; i < wait_kinds; ++i)
    if (static_cast<std::size_t>(wait_rules[i].wait) != i) return false;
  return true;
}
static_assert(rules_in_order_of_waits(), "wait_rules has a row for each Wait, in their order");

}  // namespace

bool Deadlines::take(Wait wait, Instant now) {
  auto& at = slot(wait);
  if (!at || now < *at) return false;
  at.reset();
  return true;
}

std::optional<Instant> Deadlines::next(bool awaited_only) const {
  std::optional<Instant> least;
  for (std::size_t i = 0; i < wait_kinds; ++i)
    if (at_[i] && (wait_rules[i].is_awaited || !awaited_only)) least = std::min(least.value_or(*at_[i]), *at_[i]);
  return least;
}

void Deadlines::excuse(Duration stalled, Instant not_before) {
  for (std::size_t i = 0; i < wait_kinds; ++i)
    if (at_[i] && wait_rules[i].blames_others) at_[i] = std::max(*at_[i] + stalled, not_before);
}

std::optional<Duration> StallCompensation::stalled(std::optional<Instant> wake, Instant last_event, Instant now) {
  if (!wake || now - *wake < stall_least) return std::nullopt;
  if (last_ && now - *last_ < stall_rests && now - *wake < grace) return std::nullopt;
  last_ = now;
  return now - last_event;
}

}  // namespace elrun::inline v0::launcher
