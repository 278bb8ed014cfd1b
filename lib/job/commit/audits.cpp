// step.audit(): when it may be called, and what becomes of the world where ranks came to different gradients (step_audit.hpp).

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/commit/step_end.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

void StepEnd::audit(double probability) {
  job_.require_callable();
  if (!(probability >= 0 && probability <= 1)) throw Error{invalid(fmt::format("audit({}): a probability is from 0 to 1", probability))};
  constexpr std::string_view whole =
      "audit is for zero(0) and zero(1) that exchange gradients once per step, for it compares whole gradients";
  if (job_.gathers() || job_.plan().placement.gradients != Sharding::replicated)
    throw Error{invalid(fmt::format("{}: with {} no rank has one", whole, *name_of(job_.plan().placement)))};
  if (exchanges_per_slot(job_.plan().placement))
    throw Error{invalid(fmt::format(
        "{}: with Exchange::per_slot in plan.placement (--exchange slot of the samples) no rank has one; take Exchange::automatic or per_step",
        whole))};
  require(job_.step.is_open() || job_.world.over(), "audit comes after next_step() and before apply()");
  if (job_.world.over()) return;
  if (job_.is_per_slot()) {  // this world has too little memory to keep the gradients of a whole step
    if (job_.world.leads() && job_.step.audit().refuse())
      job_.host.log.warning(
          "nothing is audited while gradients are exchanged per slot, for no rank has a whole one; raise memory_per_rank");
    return;
  }
  require(job_.step.slot() == 0 && !job_.slot.is_open() && !job_.step.audit().is_chosen(), "audit is called once per step, before slots()");
  job_.step.audit().choose(job_.plan().seed, job_.decided.applied(), probability, job_.reducer.slots_by_rank(), job_.world.rank());
}

/// Success when the step can be decided. Throws on a rank that is outvoted, and on all where nobody can tell who is wrong. Who hears all
/// votes comes to the same end as all others, so no step is decided that fails here.
Result<void> StepEnd::audit_agrees() {
  const std::uint64_t step = job_.decided.applied() + 1;
  std::vector<std::uint64_t> hashes;
  for (std::uint32_t r = 0; r < job_.world.size(); ++r) {
    const VoteMessage message = job_.votes.of_rank(r), first = job_.votes.of_rank(0);
    if (message.audit_probability != first.audit_probability)
      throw Error{invalid(
          fmt::format("in step {} rank {} audits with probability {} and rank 0 with {}: call audit() on all ranks, with the same number",
                      step, r, message.audit_probability, first.audit_probability))};
    hashes.push_back(message.audit_hash);
  }
  const auto wrong = job_.step.audit().judge(step, hashes);
  if (!wrong) return {};
  Failure failure{Code::corrupt, Remedy::exit_process, wrong->what + "; the step was not applied"};
  if (!wrong->outvoted || wrong->culprit == job_.world.rank()) throw Error{std::move(failure)};
  if (job_.world.rank() == wrong->reporter) job_.host.log.warning(wrong->what);
  failure.peer = Rank{wrong->culprit};
  failure.remedy = Remedy::rejoin;  // the others go on without it, with the same step
  job_.world.end(failure);
  return failure;
}

void Step::audit(double probability) { static_cast<Job::Impl*>(impl_)->step_end.audit(probability); }

}  // namespace elrun::inline v0
