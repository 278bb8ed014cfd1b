// The step: its slots, the vote, the decision, the update. Nothing that `apply` does before the decision touches the
// state, and after it nothing stops it.

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/fp_environment.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

// ---- slots

Phase Job::Impl::phase() const {
  const std::uint64_t step = decided_.applied();
  if (step_.is_evaluating()) return {Phase::What::evaluation, step, 0};
  if (slot_.is_open()) return {Phase::What::slot, step, rounds_.slots_through()};
  return {Phase::What::between, step, 0};
}

Slot* Job::Impl::first_slot() {
  step_.begin_loop();
  return next_slot();
}

Slot* Job::Impl::next_slot() {
  require_scopes_ended_well();
  if (slot_.is_open()) close_slot();
  if (!step_.is_open() || world.over()) return nullptr;
  const auto audited = step_.audit().take_slot();
  if (!audited && step_.slot() == my_slots().size()) {
    if (rounds_.in_phases()) (void)scopes_.end_step(decided_.applied());
    return nullptr;
  }
  const std::uint32_t index = audited ? *audited : my_slots()[step_.slot()];
  const std::uint64_t generation = world.membership().generation.number;
  auto& samples = slot_.samples();
  samples.resize(plan().micro_batch);
  samples_of_slot(plan(), ELRUN_PLANTED(samples_by_generation) ? generation : decided_.applied(), index, samples);
  Slot& slot = slot_.begin(this, generation, index, slot_stream(plan().seed, decided_.applied(), index));
  scopes_.begin_slot(phase());
  slot_.begin_clock(host.clock.now());
  return &slot;
}

bool Job::Impl::is_revoked(const Slot& slot) const {
  return world.over() || SlotAccess::generation(slot) != world.membership().generation.number;
}

void Job::Impl::add(const Slot& slot, std::string_view name, double value) { slot_.add(slot, name, value, step_.is_evaluating()); }
void Job::Impl::report(const Slot& slot, float loss, std::uint64_t tokens) { slot_.report(slot, loss, tokens); }

/// Of the host's memory it is there. Of a device it comes with the wait before the vote; that of a slot that is not counted with the step's, at once.
void Job::Impl::report(const Slot& slot, DeviceScalar loss, std::uint64_t tokens) {
  loss.stream = streams_.checked(loss.stream);
  if (loss.stream.device().kind == DeviceKind::host) return report(slot, *loss.pointer, tokens);
  slot_.report(slot, 0, tokens);
  const bool counts = !step_.is_evaluating() && !step_.audit().is_running();
  const std::size_t place = counts ? step_.slot() : plan().slots();
  losses_->fetch(place, loss, streams_);
  slot_.expect_loss(place);
}

/// False: the generation is over.
bool Job::Impl::settle_loss() {
  const auto place = slot_.loss_to_come();
  if (!place) return true;
  if (!world.wait_for_arrays("a slot's loss").ok()) return false;
  slot_.set_loss(losses_->at(*place));
  return true;
}

void Job::Impl::close_slot() {
  const Phase ended = phase();
  slot_.end();
  if (world.over()) return program_timeout_.ended(slot_.begun());  // nothing of it will be used
  program_timeout_.ended_slot(slot_.begun());
  require(slot_.has_reported(), "a slot ended without slot.report(loss, tokens)");
  scopes_.require_no_gradient_open(slot_.index());
  scopes_.begin_unused_gradients(step_.own_slot());
  StepAudit& audit = step_.audit();
  if (audit.audits(slot_.index()) && !settle_loss()) return;
  if (audit.audits(slot_.index())) audit.note(reducer_.hash_of(step_.own_slot()), slot_.loss(), slot_.tokens());
  if (audit.end_slot()) return;
  votes_.set_slot(step_.slot(), slot_.loss(), slot_.tokens());
  if (slot_.loss_to_come()) losses_to_come_.push_back(step_.slot());
  if (streams()) scopes_.finish_leaves(ended, step_.own_slot());
  else reducer_.end_slot(step_.slot());
  if (!rounds_.in_phases() || rounds_.end_slot(ended)) step_.end_slot();
}

// ---- votes

/// Success: the step is decided, and losses, tokens and norm nodes of all members are here.
Result<void> Job::Impl::exchange_votes(const Vote& mine) {
  const std::uint64_t step = decided_.applied();
  std::optional<std::uint64_t> parameters;
  if (initial_values_.is_left_to_votes()) {
    parameters = parameters_hash_.result([this] { return world.over(); });
    if (!parameters) return world.why_over();
  }
  ELRUN_TRY(votes_.exchange(world, {.vote = mine,
                                    .leaves = departure_.is_unreported(),
                                    .stops = decided_.asks_to_stop(),
                                    .saves = saves_.asks_for_save(step + 1),
                                    .audit_hash = step_.audit().hash(),
                                    .audit_probability = step_.audit().probability(),
                                    .update = decided_.report(),
                                    .parameters = parameters.value_or(0),
                                    .own = times_.own(host.clock.now(), world.exchanged())}));
  // Whoever hears all votes comes to the same end, so nobody applies a step that fails here.
  if (parameters) {
    std::vector<std::uint64_t> hashes;
    for (std::uint32_t r = 0; r < world.size(); ++r) hashes.push_back(votes_.of_rank(r).parameters);
    if (auto same = initial_values_.hear_votes(hashes, step); !same.ok()) throw Error{std::move(same).failure()};
  }
  std::vector<UpdateReport> updates;
  for (std::uint32_t r = 0; r < world.size(); ++r) updates.push_back(votes_.of_rank(r).update);
  if (auto same = check_update(step, updates); !same.ok()) throw Error{std::move(same).failure()};
  ELRUN_TRY(audit_agrees());
  bool member_leaves = false, stops = false;
  for (std::uint32_t r = 0; r < world.size(); ++r) {
    const VoteMessage message = votes_.of_rank(r);
    if (!decided_.hear(Rank{r}, message.vote)) {
      Failure f{
          Code::protocol, Remedy::abort_group,
          fmt::format("a vote for step {} of generation {} came in step {}", message.vote.step, to_string(message.vote.generation), step)};
      f.peer = Rank{r};
      f.generation = world.membership().generation;
      world.end(f);
      return f;
    }
    times_.hear_own(message.own);
    stragglers_.hear(message.own,
                     step_.audit().is_chosen() ? 0 : reducer_.slots_by_rank()[r].size());  // an audit's slot is one more for some rank
    member_leaves |= message.leaves;
    stops |= message.stops;
  }
  tell_of_straggler();
  departure_.set_member_leaves(member_leaves);
  saves_.set_asked_for(votes_.of_rank(0).saves);
  decided_.decide({.squares = reducer_.sum_of_squares(votes_.all_norm_nodes()),
                   .loss = votes_.sum_of_losses() * per_slot(),
                   .tokens = votes_.tokens(),
                   .stops = stops});
  return {};
}

void Job::Impl::tell_of_straggler() {
  const auto straggler = stragglers_.end_step();
  if (!straggler || !world.leads()) return;
  const MemberStatus& who = recovery_.statuses()[straggler->rank];
  host.log.warning(fmt::format(
      "rank {} (node {}, {}) is slow: a slot takes it {:.1f} times as long as the median of the other ranks, in {} steps in a row; the job has lost {} to it",
      straggler->rank, who.node, who.device.kind == DeviceKind::host ? "on the CPU" : fmt::format("device cuda:{}", who.device.index),
      straggler->times, straggler->steps, for_people(straggler->lost)));
}

// ---- apply

StepResult Job::Impl::apply(const AnyOptimizer& optimizer, const ApplyOptions& wanted) {
  const UpdateOptions options{.lr = wanted.lr.at(decided_.applied()), .clip_norm = wanted.clip_norm};
  std::vector<std::string> refused = problems(optimizer, options);
  for (const std::string& problem : wanted.lr.problems()) refused.push_back("the schedule of lr: " + problem);
  if (!refused.empty()) throw Error{invalid(refused)};
  if (kind_of(optimizer) != plan().optimizer)
    throw Error{invalid(fmt::format("apply is called with {}, but the plan says {}: set plan.optimizer before configure()",
                                    name_of(kind_of(optimizer)), name_of(plan().optimizer)))};
  require(step_.is_open() || world.over(), "apply was called twice, or without a step from next_step()");
  require_scopes_ended_well();
  if (slot_.is_open()) close_slot();
  scopes_.require_all_closed("apply()");
  step_.close();
  const std::uint64_t step = decided_.applied();
  // Where the evaluation was lost, the program goes on without what follows from it. Its next try has that, and may pass other values.
  decided_.pass(optimizer, options, !step_.lost_evaluation());
  if (!world.over()) {
    world.now(Call::apply);
    require(step_.slot() == my_slots().size() && !step_.audit().is_due(), "apply was called before all slots of the step were run");
    if (const auto wrong = fp_environment_problem()) throw Error{invalid(*wrong)};  // a slot may have changed them
    // With the last slot still open its leaves go only now, and the world may end over that.
    if ((!rounds_.in_phases() || scopes_.end_step(decided_.applied())) && reduce_and_vote()) {
      apply_decided();
      // A failure ends the generation, not the step: the next one brings the other shards.
      if (!state_.is_whole())
        state_.set_whole(world.exchange_arrays(state_.gather().sends, state_.gather().receives).ok() ||
                         ELRUN_PLANTED(parameters_half_gathered));
    }
  }
  // The vote was given, and the world changed before all others' came: whether it is decided, the next generation finds out.
  while (decided_.knowledge().voted > step && decided_.applied() == step && host.session.place().elastic) {
    try {
      if (world.over()) rejoin();
      settle();
    } catch (const Revoked&) {
    }
  }
  StepResult result{.step = decided_.applied(), .world = world.size(), .generation = world.membership().generation.number};
  if (result.step == step) return result;
  step_.decide();
  const Decision& decision = decided_.decision();
  result.decided = true;
  result.audited = step_.audit().is_chosen();
  result.loss = decision.loss;
  result.norm = norm_of(decision);
  result.skipped = decision.skips();
  result.steps_skipped = decided_.skipped();
  result.tokens = decision.tokens;
  const std::chrono::duration<double> took = host.clock.now() - step_.begun();
  result.tokens_per_s = took.count() > 0 ? static_cast<double>(result.tokens) / took.count() : 0;
  return result;
}

/// True once the step is decided.
bool Job::Impl::reduce_and_vote() {
  if (!reducer_.reduce(world).ok()) return false;
  // The one wait of a step on a device: for slots, sums and exchange. What is read after it is there.
  if (!world.wait_for_arrays("the gradient's norm").ok()) return false;
  for (const std::size_t slot : std::exchange(losses_to_come_, {})) votes_.set_loss(slot, losses_->at(slot));
  const std::span<float> nodes = votes_.norm_nodes();
  reducer_.fold_norm(nodes);
  const Vote mine = decided_.vote(std::all_of(nodes.begin(), nodes.end(), [](float x) { return std::isfinite(x); }));
  if (const auto doubt = decided_.take_doubt(); doubt && world.leads()) host.log.warning(*doubt);
  return exchange_votes(mine).ok();
}

/// What a decided step does to this rank's shard, whatever becomes of the generation.
void Job::Impl::apply_decided() {
  finish_readers();
  const Decision& decision = decided_.decision();
  if (!decision.skips()) {
    const UpdateRecord& updates = decided_.updates();
    const float norm = norm_of(decision), most = updates.options().clip_norm;
    const float scale = most > 0 && norm > most ? per_slot() * (most / norm) : per_slot();
    state_.update(updates.optimizer(), updates.options().lr, scale, decided_.applied() + 1, reducer_.reduced());
  }
  decided_.apply();
  host.session.progress(
      {StepNumber{decided_.applied()}, plan().steps, decided_.loss(), times_.decided(host.clock.now(), world.exchanged())});
}

float Job::Impl::norm_of(const Decision& decision) const { return std::sqrt(decision.squares) * per_slot(); }

// ---- what users hold

void Slot::report(float loss, std::uint64_t tokens) { static_cast<Job::Impl*>(impl_)->report(*this, loss, tokens); }
void Slot::add(std::string_view name, double value) { static_cast<Job::Impl*>(impl_)->add(*this, name, value); }
void Slot::report(DeviceScalar loss, std::uint64_t tokens) { static_cast<Job::Impl*>(impl_)->report(*this, loss, tokens); }
bool Slot::revoked() const { return static_cast<const Job::Impl*>(impl_)->is_revoked(*this); }

Step::Slots Step::slots() {
  static_cast<Job::Impl*>(impl_)->take_slots();
  return Slots{this};
}
Slot* Step::first_slot() { return static_cast<Job::Impl*>(impl_)->first_slot(); }
Slot* Step::next_slot() { return static_cast<Job::Impl*>(impl_)->next_slot(); }
StepResult Step::apply(const AdamW& optimizer, const ApplyOptions& options) {
  return static_cast<Job::Impl*>(impl_)->apply(optimizer, options);
}
StepResult Step::apply(const Sgd& optimizer, const ApplyOptions& options) {
  return static_cast<Job::Impl*>(impl_)->apply(optimizer, options);
}
StepResult Step::apply(const Lion& optimizer, const ApplyOptions& options) {
  return static_cast<Job::Impl*>(impl_)->apply(optimizer, options);
}

}  // namespace elrun::inline v0
