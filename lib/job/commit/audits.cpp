// step.audit(): when it may be called, and what becomes of the world where ranks came to different gradients (step_audit.hpp).

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

void Job::Impl::audit(double probability) {
  if (!(probability >= 0 && probability <= 1)) throw Error{invalid(fmt::format("audit({}): a probability is from 0 to 1", probability))};
  constexpr std::string_view whole =
      "audit is for zero(0) and zero(1) that exchange gradients once per step, for it compares whole gradients";
  if (gathers() || plan().placement.gradients != Sharding::replicated)
    throw Error{invalid(fmt::format("{}: with {} no rank has one", whole, *name_of(plan().placement)))};
  if (exchanges_per_slot(plan().placement))
    throw Error{invalid(fmt::format(
        "{}: with Exchange::per_slot in plan.placement (--exchange slot of the samples) no rank has one; take Exchange::automatic or per_step",
        whole))};
  require(step_.is_open() || world.over(), "audit comes after next_step() and before apply()");
  if (world.over()) return;
  if (streams()) {  // this world has too little memory to keep the gradients of a whole step
    if (world.leads() && step_.audit().refuse())
      host.log.warning("nothing is audited while gradients are exchanged per slot, for no rank has a whole one; raise memory_per_rank");
    return;
  }
  require(step_.slot() == 0 && !slot_.is_open() && !step_.audit().is_chosen(), "audit is called once per step, before slots()");
  step_.audit().choose(plan().seed, decided_.applied(), probability, reducer_.slots_by_rank(), world.rank());
}

/// Success when the step can be decided. Throws on a rank that is outvoted, and on all where nobody can tell who is wrong. Who hears all
/// votes comes to the same end as all others, so no step is decided that fails here.
Result<void> Job::Impl::audit_agrees() {
  const std::uint64_t step = decided_.applied() + 1;
  std::vector<std::uint64_t> hashes;
  for (std::uint32_t r = 0; r < world.size(); ++r) {
    const VoteMessage message = votes_.of_rank(r), first = votes_.of_rank(0);
    if (message.audit_probability != first.audit_probability)
      throw Error{invalid(
          fmt::format("in step {} rank {} audits with probability {} and rank 0 with {}: call audit() on all ranks, with the same number",
                      step, r, message.audit_probability, first.audit_probability))};
    hashes.push_back(message.audit_hash);
  }
  const auto wrong = step_.audit().judge(step, hashes);
  if (!wrong) return {};
  Failure failure{Code::corrupt, Remedy::exit_process, wrong->what + "; the step was not applied"};
  if (!wrong->outvoted || wrong->culprit == world.rank()) throw Error{std::move(failure)};
  if (world.rank() == wrong->reporter) host.log.warning(wrong->what);
  failure.peer = Rank{wrong->culprit};
  failure.remedy = Remedy::rejoin;  // the others go on without it, with the same step
  world.end(failure);
  return failure;
}

void Step::audit(double probability) { static_cast<Job::Impl*>(impl_)->audit(probability); }

}  // namespace elrun::inline v0
