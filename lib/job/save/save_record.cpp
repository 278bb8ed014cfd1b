#include "lib/job/save/save_record.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/words.hpp"
#include "lib/job/save/storage_retry.hpp"

namespace elrun::inline v0 {

void SaveRecord::saved(std::uint64_t step) {
  step_ = step_ == never_saved ? step : std::max(step_, step);
  safe_at_ = clock_.now();
}

Duration SaveRecord::age() const { return std::max<Duration>(clock_.now() - safe_at_, Duration{0}); }

std::uint64_t SaveRecord::leave_out(std::uint64_t step) {
  session_.save_left_out(StepNumber{step}, ++left_out_);
  return left_out_;
}

void SaveRecord::end_if_too_old(Duration max_age, std::uint64_t step, const Failure& why) {
  if (max_age == Duration{0}) return;
  const Duration age = of_leader(world_, clock_.now() - safe_at_, "the age of the newest checkpoint");
  if (age <= max_age) return;
  Failure last = why;
  last.rank = Rank{world_.rank()}, last.remedy = Remedy::fix_config;  // whatever the save itself failed of, this is for a person to mend
  last.what = fmt::format("no checkpoint was saved for {}, and checkpoint.max_age is {}: the job ends here; the save of step {} failed: {}",
                          for_people(age), for_people(max_age), step, last.what);
  throw CheckpointTooOld{std::move(last)};
}

}  // namespace elrun::inline v0
