#include "rendezvous/round/restart_budget.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fmt/format.h>

#include "lib/base/words.hpp"

namespace elrun::inline v0 {

void RestartBudget::count_on_from(const RestartCounts& before, std::int32_t max_restarts, std::uint32_t generations_max) {
  counts_.generations = std::max(counts_.generations, std::min(before.generations, generations_max));
  const std::int32_t limit = max_restarts >= 0 ? max_restarts : job_restarts;
  counts_.used = std::max(counts_.used, std::min(before.used, static_cast<std::uint32_t>(limit)));
}

bool RestartBudget::decided(std::uint64_t step) {
  if (step <= newest_step_) return false;  // done before, and again since: no further than at the last failure
  newest_step_ = step;
  progressed_ = true;
  alike_ = 0;
  return true;
}

// A program that fails the same way whenever it starts would use up its restarts before what it needs (a file server, a
// device that is being reset) is back: each such attempt waits longer.
void RestartBudget::note_failure(std::int32_t exit_code, Duration after_start, Instant now) {
  const bool killed = exit_code == 128 + SIGKILL || exit_code == 128 + SIGTERM;
  const bool at_start = after_start < start_over_within && !killed;
  alike_ = !at_start ? 0 : exit_code == alike_code_ ? alike_ + 1 : 1;
  alike_code_ = exit_code;
  if (alike_ > 1) pause_until_ = now + start_pause * (1 << std::min(alike_ - 2, start_pause_doublings_max));
}

// Bounded by the time since a failure that was judged by itself: a program that is killed at each start pays for it.
bool RestartBudget::belongs_to_last_failure(std::int32_t exit_code, bool before_return, Instant now) const {
  if (!is_job_) return false;
  if (before_return && failed_before_) return true;
  return exit_code == 128 + SIGKILL && judged_at_ != Instant{} && now - judged_at_ < killed_together_within;
}

RestartBudget::Charge RestartBudget::charge(std::int32_t exit_code, std::int32_t max_restarts, Instant now, bool before_return) {
  const std::int32_t limit = this->limit(max_restarts);
  failed_ = true;
  const bool wrong_configuration = is_job_ && exit_code == exit_code_configuration;
  const bool free_of_charge = is_job_ && progressed_ && limit > 0;
  const bool belongs =
      belongs_to_last_failure(exit_code, before_return, now) && !wrong_configuration && exit_code != exit_code_checkpoint_too_old;
  if (belongs) return {{}, "; it costs no restart: it belongs to the failure before"};
  progressed_ = false;
  judged_at_ = now;
  Charge charge;
  if (wrong_configuration) charge.exhausted = "a wrong configuration is not restarted";
  else if (is_job_ && exit_code == exit_code_checkpoint_too_old)
    charge.exhausted = "a job that could save no checkpoint for too long (CheckpointOptions::max_age) is not restarted";
  else if (charged_ = !free_of_charge; charged_ && static_cast<std::int64_t>(++counts_.used) > limit)
    charge.exhausted =
        limit == 0 ? "no restart is allowed (--max_restarts)" : fmt::format("all {} restarts (--max_restarts) are used", limit);
  charge.note = charge.exhausted ? fmt::format("; {}", *charge.exhausted)
                : free_of_charge
                    ? "; this restart is free: there was progress since the last one"
                    : fmt::format("; restart {} of {}{}", counts_.used, limit,
                                  alike_ > 1 ? fmt::format(" after a pause of {:.0f} s, for it failed alike {} times soon after its start",
                                                           seconds(pause_until_ - now), alike_)
                                             : "");
  return charge;
}

bool RestartBudget::refund() {
  if (!std::exchange(charged_, false)) return false;
  --counts_.used;
  alike_ = 0;
  pause_until_ = {};
  return true;
}

}  // namespace elrun::inline v0
