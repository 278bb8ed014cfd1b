// step.audit(): a slot is handed out on other ranks too, before their own, for then all buffers are free; what comes out is
// hashed and forgotten. The hashes travel with the votes, and a step whose audit fails is decided by nobody: a wrong gradient never
// reaches the state.

#include <algorithm>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/commit/verdict.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

void Job::Impl::audit(double probability) {
  if (!(probability >= 0 && probability <= 1)) throw Error{invalid(fmt::format("audit({}): a probability is from 0 to 1", probability))};
  constexpr std::string_view whole =
      "audit is for zero(0) and zero(1) that exchange gradients once per step, for it compares whole gradients";
  if (gathers() || plan->placement.gradients != Spread::replicated)
    throw Error{invalid(fmt::format("{}: with {} no rank has one", whole, *name_of(plan->placement)))};
  if (exchanges_per_slot(plan->placement))
    throw Error{invalid(fmt::format(
        "{}: with Exchange::per_slot in plan.placement (--exchange slot of the samples) no rank has one; take Exchange::automatic or per_step",
        whole))};
  require(step_open_ || world.over(), "audit comes after next_step() and before apply()");
  if (world.over()) return;
  if (streams()) {  // for want of memory, in this world
    if (world.leads() && !std::exchange(audits_refused_, true))
      host.log.warning("nothing is audited while gradients are exchanged per slot, for no rank has a whole one; raise memory_per_rank");
    return;
  }
  require(in_.slot == 0 && !in_.open && !in_.audit, "audit is called once per step, before slots()");
  in_.audit_probability = probability;
  in_.audit = choose_audit(plan->seed, commit_.knowledge().applied, probability, slots_);
  in_.has_to_audit = in_.audit && std::ranges::find(in_.audit->auditors, world.rank()) != in_.audit->auditors.end();
}

float* Job::Impl::leaf() const { return in_.auditing ? gradients_.first() : gradients_.leaf(in_.slot); }

/// Of the slot that is open, whose gradient is final: nothing in it depends on who computes it.
void Job::Impl::note_audit() {
  const float* const gradient = leaf();
  in_.audit_hash = mix_sum(std::as_bytes(std::span{gradient, layout_.gradients}), 0, 0) +
                   Mix{}(std::bit_cast<std::uint32_t>(reported_loss_), salt_of("loss")) + Mix{}(reported_tokens_, salt_of("tokens"));
}

/// What came with the votes, by rank: success when the step can be decided. Throws on a rank that is outvoted, and on all where
/// nobody can tell who is wrong. Who hears all votes comes to the same end as all others, so no step is decided that fails here.
Result<void> Job::Impl::audit_agrees(std::span<const double> probabilities, std::span<const std::uint64_t> by_rank) {
  const std::uint64_t step = commit_.knowledge().applied + 1;
  for (std::size_t r = 1; r < probabilities.size(); ++r)
    if (probabilities[r] != probabilities[0])
      throw Error{invalid(
          fmt::format("in step {} rank {} audits with probability {} and rank 0 with {}: call audit() on all ranks, with the same number",
                      step, r, probabilities[r], probabilities[0]))};
  if (!in_.audit) return {};
  std::vector<std::uint32_t> ranks{in_.audit->owner};
  ranks.insert(ranks.end(), in_.audit->auditors.begin(), in_.audit->auditors.end());
  std::vector<std::uint64_t> hashes;
  for (const std::uint32_t r : ranks) hashes.push_back(by_rank[r]);
  const auto wrong = dissenter(hashes);
  if (!wrong) return {};
  std::string told = fmt::format("audit of slot {} in step {}:", in_.audit->slot, step);
  for (std::size_t i = 0; i < ranks.size(); ++i) told += fmt::format(" rank {} has gradient {:016x},", ranks[i], hashes[i]);
  const std::uint32_t culprit = ranks[wrong->index];
  told += wrong->outvoted ? fmt::format(" so rank {} computed it wrong: its processor or memory is not to be trusted", culprit)
                          : " and nobody can tell which is right: a processor or memory is not to be trusted, or the program computes "
                            "something else every time";
  Failure failure{Code::corrupt, Remedy::exit_process, told + "; the step was not applied"};
  if (wrong->outvoted) failure.peer = Rank{culprit};
  if (!wrong->outvoted || culprit == world.rank()) {
    failure.peer.reset();
    throw Error{std::move(failure)};
  }
  if (world.rank() == ranks[wrong->index == 0 ? 1 : 0]) host.log.warning(told);
  failure.remedy = Remedy::rejoin;  // the others go on without it, with the same step
  world.end(failure);
  return failure;
}

void Step::audit(double probability) { static_cast<Job::Impl*>(impl_)->audit(probability); }

}  // namespace elrun::inline v0
