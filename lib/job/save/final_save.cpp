#include "lib/job/save/final_save.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

constexpr Duration first_pause = 1s, longest_pause = 30s;
constexpr unsigned tries_at_once = 3;
constexpr int tries_of_a_name = 25;  // and some short ones before: a name has 99 attempts, of which each may take three

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

}  // namespace

bool is_tried_at_once(Code why, unsigned tries) {
  const bool stays_so = why == Code::no_space || why == Code::not_permitted || why == Code::not_found || why == Code::deadline_passed;
  return tries < tries_at_once && can_heal(why) && !stays_so;
}

std::optional<Duration> pause_before_next(const FinalSave& save, const Failure& why, Instant now) {
  const Duration left = save.begun + save.wait - now;
  if (!can_heal(why.code) || left <= Duration{0}) return std::nullopt;
  const Duration longest = std::max(longest_pause, save.wait / tries_of_a_name);
  Duration pause = first_pause;
  for (unsigned i = 1; i < save.tries && pause < longest; ++i) pause *= 2;
  return std::min({pause, longest, left});  // the last try is at the very end
}

std::string told(const FinalSave& save, std::uint64_t step, const Failure& why, Duration pause, Instant now) {
  return fmt::format(
      "all {} steps are done, but try {} of the final checkpoint failed: {}. The state is in memory alone; it is tried again in {}, and {} are left",
      step, save.tries, message(why), for_people(pause), for_people(save.begun + save.wait - now));
}

}  // namespace elrun::inline v0
