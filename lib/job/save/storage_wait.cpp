#include "lib/job/save/storage_wait.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/commit/sights.hpp"
#include "checkpoint/format/names.hpp"
#include "lib/base/failure.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration first_pause = 1s, longest_pause = 30s;
constexpr unsigned tries_at_once = 3;
constexpr unsigned tries_under_a_fence = 25;
constexpr Duration looks_span = 31s;                                      // of `looks_max` looks with these pauses
static_assert((tries_under_a_fence + 1) * tries_at_once <= attempt_max);  // and those of the save before them

/// Whoever administrates the storage can free space, mount it again or allow to write while the job waits.
bool can_heal(Code code) {
  switch (code) {
    case Code::no_space:
    case Code::not_permitted:
    case Code::not_found:
    case Code::io:
    case Code::corrupt:
    case Code::already_exists:
    case Code::unreachable:
    case Code::deadline_passed: return true;
    default: return false;
  }
}

/// A storage that answers, and is not the same for all ranks, is looked at as often as that needs, however long the job waits for one that does not answer.
Duration left_of(const StorageWait& wait, const Failure& why, Instant now) {
  return wait.begun.value_or(now) + (may_be_seen_yet(why) ? std::max(wait.wait, looks_span) : wait.wait) - now;
}

}  // namespace

bool is_tried_at_once(Code why, unsigned tries) {
  const bool stays_so = why == Code::no_space || why == Code::not_permitted || why == Code::not_found || why == Code::deadline_passed;
  return tries < tries_at_once && can_heal(why) && !stays_so;
}

std::optional<Duration> pause_before_next(const StorageWait& wait, const Failure& why, Instant now) {
  const Duration left = left_of(wait, why, now);
  if (!can_heal(why.code) || left <= Duration{0}) return std::nullopt;
  Duration pause = first_pause;
  for (unsigned i = 1; i < wait.tries && pause < longest_pause; ++i) pause *= 2;
  return std::min({pause, longest_pause, left});  // the last try is at the very end
}

bool needs_another_fence(const StorageWait& wait) { return wait.tries % tries_under_a_fence == 0; }

bool may_pass(const Failure& why) {
  return may_be_seen_yet(why) ||
         (why.remedy == Remedy::retry && (why.code == Code::io || why.code == Code::unreachable || why.code == Code::deadline_passed));
}

std::string start_failed(const StorageWait& wait, const Failure& why, Duration pause, Instant now) {
  return fmt::format("the job waits for the storage of its checkpoints, try {} failed: {}. It is tried again in {}, and {} are left",
                     wait.tries, message(why), for_people(pause), for_people(left_of(wait, why, now)));
}

std::string final_save_failed(const StorageWait& wait, std::uint64_t step, const Failure& why, Duration pause, Instant now) {
  return fmt::format(
      "all {} steps are done, but try {} of the final checkpoint failed: {}. The state is in memory alone; it is tried again in {}, and {} are left",
      step, wait.tries, message(why), for_people(pause), for_people(wait.begun.value_or(now) + wait.wait - now));
}

}  // namespace elrun::inline v0
