#include "lib/job/recover/parameter_comparison.hpp"

#include <vector>

#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

void ParameterComparison::begin(bool with_votes) {
  if (job_.world.size() == 1) return job_.initial_values.compare(job_.world, 0, job_.decided.applied());
  job_.parameters_hash.begin(job_.memory(), job_.recovery.were_compared()
                                                ? job_.state.replicated_sample(job_.world.membership().generation.number)
                                                : job_.state.replicated_parameters());
  const Settled& settled = job_.recovery.settled();
  const bool are_of_members = (job_.recovery.transfer().complete && settled.newest_step > 0) || settled.goes_to_memory;
  if (with_votes && are_of_members) return job_.initial_values.leave_to_votes();
  compare_now();
}

void ParameterComparison::compare_now() {
  const auto mine = job_.parameters_hash.result([this] { return job_.world.over(); });
  if (!mine) revoked(job_.world);
  job_.initial_values.compare(job_.world, *mine, job_.decided.applied());
}

bool ParameterComparison::before_evaluation() {
  if (!job_.initial_values.is_left_to_votes()) return true;
  try {
    job_.world.now(Call::evaluate);
    compare_now();
    return true;
  } catch (const Revoked&) {
    return false;
  }
}

Result<std::uint64_t> ParameterComparison::for_vote() {
  if (!job_.initial_values.is_left_to_votes()) return std::uint64_t{0};
  const auto hash = job_.parameters_hash.result([this] { return job_.world.over(); });
  if (!hash) return job_.world.why_over();
  return *hash;
}

void ParameterComparison::hear_votes(std::uint64_t step) {
  if (!job_.initial_values.is_left_to_votes()) return;
  std::vector<std::uint64_t> hashes;
  for (std::uint32_t r = 0; r < job_.world.size(); ++r) hashes.push_back(job_.votes.of_rank(r).parameters);
  if (auto same = job_.initial_values.hear_votes(hashes, step); !same.ok()) throw Error{std::move(same).failure()};
}

}  // namespace elrun::inline v0
