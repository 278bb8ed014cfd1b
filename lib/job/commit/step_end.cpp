#include "lib/job/commit/step_end.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "lib/job/commit/decided_update.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/fp_environment.hpp"
#include "lib/job/job_impl.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

StepResult StepEnd::apply(const AnyOptimizer& optimizer, const ApplyOptions& wanted) {
  job_.require_callable();
  const UpdateOptions options{.lr = wanted.lr.at(job_.decided.applied()), .clip_norm = wanted.clip_norm};
  check(optimizer, wanted, options);
  require(job_.step.is_open() || job_.world.over(), "apply was called twice, or without a step from next_step()");
  job_.require_scopes_ended_well();
  if (job_.slot.is_open()) slots_.close_slot();
  job_.scopes.require_all_closed("apply()");
  job_.step.close();
  const std::uint64_t step = job_.decided.applied();
  // Where the evaluation was lost, the program goes on without what follows from it. Its next try has that, and may pass other values.
  job_.decided.pass(optimizer, options, !job_.step.lost_evaluation());
  if (!job_.world.over()) {
    job_.world.now(Call::apply);
    require(job_.step.slot() == job_.my_slots().size() && !job_.step.audit().is_due(),
            "apply was called before all slots of the step were run");
    if (const auto wrong = fp_environment_problem()) throw Error{invalid(*wrong)};  // a slot may have changed them
    if (step == 0 && job_.world.leads() && !job_.my_slots().empty())
      if (const auto unused = job_.scopes.unused_line()) job_.host.log.warning(*unused);
    // With the last slot still open its leaves go only now, and the world may end over that.
    if ((!job_.rounds.in_phases() || job_.scopes.end_step(job_.decided.applied())) && reduce_and_vote()) {
      job_.state.finish_recut();  // all have voted, so all have their new shards
      apply_decided(job_);
      job_.memory_checkpoints.all_have_theirs();
      // A failure ends the generation, not the step: the next one brings the other shards.
      if (!job_.state.is_whole())
        job_.state.set_whole(job_.world.exchange_arrays(job_.state.gather().sends, job_.state.gather().receives).ok() ||
                             ELRUN_PLANTED(parameters_half_gathered));
    }
  }
  // The vote was given, and the world changed before all others' came: whether it is decided, the next generation finds out.
  while (job_.decided.knowledge().voted > step && job_.decided.applied() == step && job_.host.session.place().elastic) {
    try {
      if (job_.world.over()) change_.rejoin();
      change_.settle();
    } catch (const Revoked&) {
    }
  }
  StepResult result{.step = job_.decided.applied(), .world = job_.world.size(), .generation = job_.world.membership().generation.number};
  if (result.step == step) return result;
  job_.step.decide();
  return decided(result);
}

/// Throws Error for what the call may not have, all of it at once.
void StepEnd::check(const AnyOptimizer& optimizer, const ApplyOptions& wanted, const UpdateOptions& options) const {
  std::vector<std::string> refused = problems(optimizer, options);
  for (const std::string& problem : wanted.lr.problems()) refused.push_back("the schedule of lr: " + problem);
  if (!refused.empty()) throw Error{invalid(refused)};
  if (kind_of(optimizer) != job_.plan().optimizer)
    throw Error{invalid(fmt::format("apply is called with {}, but the plan says {}: set plan.optimizer before configure()",
                                    name_of(kind_of(optimizer)), name_of(job_.plan().optimizer)))};
}

StepResult StepEnd::decided(StepResult result) const {
  const Decision& decision = job_.decided.decision();
  result.decided = true;
  result.audited = job_.step.audit().is_chosen();
  result.loss = decision.loss;
  result.norm = norm_of(job_, decision);
  result.skipped = decision.skips();
  result.steps_skipped = job_.decided.skipped();
  result.tokens = decision.tokens;
  const std::chrono::duration<double> took = job_.host.clock.now() - job_.step.begun();
  result.tokens_per_s = took.count() > 0 ? static_cast<double>(result.tokens) / took.count() : 0;
  return result;
}

/// True once the step is decided.
bool StepEnd::reduce_and_vote() {
  if (!job_.reducer.reduce(job_.world).ok() || !job_.await_state()) return false;
  // The one wait of a step on a device: for slots, sums and exchange. What is read after it is there.
  if (!job_.world.wait_for_arrays("the gradient's norm").ok()) return false;
  for (const std::size_t slot : std::exchange(job_.losses_to_come, {})) job_.votes.set_loss(slot, job_.losses->at(slot));
  const std::span<float> nodes = job_.votes.norm_nodes();
  job_.reducer.fold_norm(nodes);
  const Vote mine = job_.decided.vote(std::all_of(nodes.begin(), nodes.end(), [](float x) { return std::isfinite(x); }));
  if (const auto doubt = job_.decided.take_doubt(); doubt && job_.world.leads()) job_.host.log.warning(*doubt);
  return exchange_votes(mine).ok();
}

/// Success: the step is decided, and losses, tokens and norm nodes of all members are here.
Result<void> StepEnd::exchange_votes(const Vote& mine) {
  const std::uint64_t step = job_.decided.applied();
  ELRUN_TRY_ASSIGN(const std::uint64_t parameters, comparison_.for_vote());
  ELRUN_TRY(job_.votes.exchange(job_.world, {.vote = mine,
                                             .leaves = job_.departure.is_unreported(),
                                             .stops = job_.decided.asks_to_stop(),
                                             .saves = job_.saves.asks_for_save(step + 1),
                                             .audit_hash = job_.step.audit().hash(),
                                             .audit_probability = job_.step.audit().probability(),
                                             .update = job_.decided.report(),
                                             .parameters = parameters,
                                             .own = job_.times.own(job_.host.clock.now(), job_.world.exchanged())}));
  // Whoever hears all votes comes to the same end, so nobody applies a step that fails here.
  comparison_.hear_votes(step);
  std::vector<UpdateReport> updates;
  for (std::uint32_t r = 0; r < job_.world.size(); ++r) updates.push_back(job_.votes.of_rank(r).update);
  if (auto same = check_update(step, updates); !same.ok()) throw Error{std::move(same).failure()};
  ELRUN_TRY(audit_agrees());
  bool member_leaves = false, stops = false;
  for (std::uint32_t r = 0; r < job_.world.size(); ++r) {
    const VoteMessage message = job_.votes.of_rank(r);
    if (!job_.decided.hear(Rank{r}, message.vote)) {
      Failure f{
          Code::protocol, Remedy::abort_group,
          fmt::format("a vote for step {} of generation {} came in step {}", message.vote.step, to_string(message.vote.generation), step)};
      f.peer = Rank{r};
      f.generation = job_.world.membership().generation;
      job_.world.end(f);
      return f;
    }
    job_.times.hear_own(message.own);
    // In an audited step some ranks have a slot more: it says nothing of how slow a rank is, and ends no row of slow steps.
    if (!job_.step.audit().is_chosen()) job_.stragglers.hear(message.own, job_.reducer.slots_by_rank()[r].size());
    member_leaves |= message.leaves;
    stops |= message.stops;
  }
  if (!job_.step.audit().is_chosen()) tell_of_stragglers();
  job_.departure.set_member_leaves(member_leaves);
  job_.saves.set_asked_for(job_.votes.of_rank(0).saves);
  job_.decided.decide({.squares = job_.reducer.sum_of_squares(job_.votes.all_norm_nodes()),
                       .loss = job_.votes.sum_of_losses() * job_.per_slot(),
                       .tokens = job_.votes.tokens(),
                       .stops = stops});
  return {};
}

/// All ranks come to the same: each tells its agent, and the leader the log.
void StepEnd::tell_of_stragglers() {
  for (const Straggler& straggler : job_.stragglers.end_step()) {
    const MemberStatus& who = job_.recovery.statuses()[straggler.rank];
    const std::string device = who.device.kind == DeviceKind::host ? "cpu" : fmt::format("cuda:{}", who.device.index);
    job_.host.session.rank_is_slow({.rank = straggler.rank,
                                    .node = who.node,
                                    .device = device,
                                    .step = job_.decided.applied() + 1,
                                    .steps = straggler.steps,
                                    .times = static_cast<float>(straggler.times),
                                    .lost = straggler.lost});
    if (!job_.world.leads()) continue;
    job_.host.log.warning(fmt::format(
        "rank {} (node {}, {}) is slow: a slot takes it {:.1f} times as long as the median of the other ranks, in {} steps in a row; the job has lost {} to it",
        straggler.rank, who.node, who.device.kind == DeviceKind::host ? "on the CPU" : "device " + device, straggler.times, straggler.steps,
        for_people(straggler.lost)));
  }
}

// ---- what users hold

StepResult Step::apply(const AdamW& optimizer, const ApplyOptions& options) {
  return static_cast<Job::Impl*>(impl_)->step_end.apply(optimizer, options);
}
StepResult Step::apply(const Sgd& optimizer, const ApplyOptions& options) {
  return static_cast<Job::Impl*>(impl_)->step_end.apply(optimizer, options);
}
StepResult Step::apply(const Lion& optimizer, const ApplyOptions& options) {
  return static_cast<Job::Impl*>(impl_)->step_end.apply(optimizer, options);
}

}  // namespace elrun::inline v0
