// The step: its slots, the vote, the decision, the update. Nothing that `apply` does before the decision touches the
// state, and after it nothing stops it.

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "lib/base/assert.hpp"
#include "lib/base/failure.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/fp_environment.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

// ---- slots

void Job::Impl::begin_slots() {
  require(step_open_ || world.over(), "slots() is called after apply(), or for a step that is over: take the next one from next_step()");
  require(!in_.slots_taken, "slots() is called twice in one step: it hands out each slot once; keep what a second pass needs in the first");
  in_.slots_taken = true;
}

Slot* Job::Impl::first_slot() {
  require(!in_.slots_begun, "a second loop goes over the slots of one step: each slot is handed out once");
  in_.slots_begun = true;
  return next_slot();
}

Slot* Job::Impl::next_slot() {
  if (slot_.is_open()) close_slot();
  if (!step_open_ || world.over()) return nullptr;
  const auto audited = in_.audit.take_slot();
  if (!audited && in_.slot == my_slots().size()) {
    if (in_phases()) (void)end_phases_of_step();
    return nullptr;
  }
  const std::uint32_t index = audited ? *audited : my_slots()[in_.slot];
  const std::uint64_t generation = world.membership().generation.number;
  auto& samples = slot_.samples();
  samples.resize(plan->micro_batch);
  samples_of_slot(*plan, ELRUN_PLANTED(samples_by_generation) ? generation : commit_.knowledge().applied, index, samples);
  Slot& slot = slot_.begin(this, generation, index, slot_stream(plan->seed, commit_.knowledge().applied, index));
  for (UnitState& unit : units_) unit.scopes = 0;
  absence_.begin_slot();
  if (overlaps()) {
    comm_thread_.work_alone();
    comm_thread_.tell([&](PendingRequests& requests) { requests.begin(phase()); });
    slot_order_.begin();
  }
  slot_.begin_clock(host.clock.now());
  return &slot;
}

bool Job::Impl::is_revoked(const Slot& slot) const {
  return world.over() || SlotAccess::generation(slot) != world.membership().generation.number;
}

void Job::Impl::add(const Slot& slot, std::string_view name, double value) { slot_.add(slot, name, value, in_.evaluating); }
void Job::Impl::report(const Slot& slot, float loss, std::uint64_t tokens) { slot_.report(slot, loss, tokens); }

void Job::Impl::close_slot() {
  const Phase ended = phase();
  slot_.end();
  absence_.ended(slot_.begun());
  if (world.over()) return;  // nothing of it will be used
  require(slot_.has_reported(), "a slot ended without slot.report(loss, tokens)");
  for (const UnitState& unit : units_)
    if (unit.gradients_open > 0)
      throw Error{
          invalid(fmt::format("slot {} ended inside a use_grad scope of unit '{}': let the scope end before the slot, for its "
                              "end hands the gradient off",
                              slot_.index(), specs_[unit.index].name))};
  if (!streams())
    for (const UnitState& unit : units_)
      if (unit.scopes == 0) reducer_.begin_unit(unit.index, open_slot());  // it had no part in this slot
  if (in_.audit.is_chosen())
    in_.audit.note(slot_.index(), {reducer_.made_in(open_slot()), state_.layout().gradients}, slot_.loss(), slot_.tokens());
  if (in_.audit.end_slot()) return;
  votes_.set_slot(in_.slot, slot_.loss(), slot_.tokens());
  if (streams()) finish_leaves(ended);
  else reducer_.end_slot(in_.slot);
  if (!in_phases() || end_slot(ended)) ++in_.slot;
}

// ---- votes

/// Success: the step is decided, and losses, tokens and norm nodes of all members are here.
Result<void> Job::Impl::exchange_votes(const Vote& mine) {
  const std::uint64_t step = commit_.knowledge().applied;
  ELRUN_TRY(votes_.exchange(world, {.vote = mine,
                                    .leaves = departure_.is_untold(),
                                    .stops = stop_.is_asked(),
                                    .audit_hash = in_.audit.hash(),
                                    .audit_probability = in_.audit.probability(),
                                    .update = updates_.said(step)}));
  // Whoever hears all votes comes to the same end, so nobody applies a step that fails here.
  std::vector<UpdateSaid> updates;
  for (std::uint32_t r = 0; r < world.size(); ++r) updates.push_back(votes_.said(r).update);
  if (auto same = check_update(step, updates); !same.ok()) throw Error{std::move(same).failure()};
  ELRUN_TRY(audit_agrees());
  bool member_leaves = false, stops = false;
  for (std::uint32_t r = 0; r < world.size(); ++r) {
    const VoteSaid said = votes_.said(r);
    if (!commit_.hear(Rank{r}, said.vote)) {
      Failure f{Code::protocol, Remedy::abort_group,
                fmt::format("a vote for step {} of generation {} came in step {}", said.vote.step, to_string(said.vote.generation), step)};
      f.peer = Rank{r};
      f.generation = world.membership().generation;
      world.end(f);
      return f;
    }
    member_leaves |= said.leaves;
    stops |= said.stops;
  }
  ELRUN_ASSERT(commit_.decided());
  departure_.set_member_leaves(member_leaves);
  decision_ = {.squares = reducer_.sum_of_squares(votes_.all_norm_nodes()),
               .finite = commit_.finite(),
               .loss = votes_.sum_of_losses() * per_slot(),
               .tokens = votes_.tokens(),
               .count = commit_.knowledge().decided,
               .update = updates_.voted(),
               .stops = stops};
  return {};
}

// ---- apply

StepResult Job::Impl::apply(const AnyOptimizer& optimizer, const ApplyOptions& wanted) {
  const UpdateOptions options{.lr = wanted.lr.at(commit_.knowledge().applied), .clip_norm = wanted.clip_norm};
  if (const auto wrong = problems(optimizer, options); !wrong.empty()) throw Error{invalid(wrong)};
  if (kind_of(optimizer) != plan->optimizer)
    throw Error{invalid(fmt::format("apply is called with {}, but the plan says {}: set plan.optimizer before configure()",
                                    name_of(kind_of(optimizer)), name_of(plan->optimizer)))};
  require(step_open_ || world.over(), "apply was called twice, or without a step from next_step()");
  if (slot_.is_open()) close_slot();
  no_scope_open("apply()");
  step_open_ = false;
  const std::uint64_t step = commit_.knowledge().applied;
  updates_.pass(step, optimizer, options);
  if (!world.over()) {
    world.now(Call::apply);
    require(in_.slot == my_slots().size() && !in_.audit.is_due(), "apply was called before all slots of the step were run");
    if (const auto wrong = fp_environment_problem()) throw Error{invalid(*wrong)};  // a slot may have changed them
    // With the last slot still open its leaves go only now, and the world may end over that.
    if ((!in_phases() || end_phases_of_step()) && reduce_and_vote()) {
      apply_decided();
      // A failure ends the generation, not the step: the next one brings the other shards.
      if (!state_.is_whole())
        state_.set_whole(world.exchange(state_.gather().sends, state_.gather().receives).ok() || ELRUN_PLANTED(parameters_half_gathered));
    }
  }
  // The vote was given, and the world changed before all others' came: whether it is decided, the next generation finds out.
  while (commit_.knowledge().voted > step && commit_.knowledge().applied == step && host.session.place().elastic) {
    try {
      if (world.over()) rejoin();
      settle();
    } catch (const Revoked&) {
    }
  }
  StepResult result{.step = commit_.knowledge().applied, .world = world.size(), .generation = world.membership().generation.number};
  if (result.step == step) return result;
  handed_out_ = false;
  result.decided = true;
  result.audited = in_.audit.is_chosen();
  result.loss = decision_.loss;
  result.norm = norm_of(decision_);
  result.skipped = decision_.skips();
  result.steps_skipped = skipped_;
  result.tokens = decision_.tokens;
  const std::chrono::duration<double> took = host.clock.now() - in_.begun;
  result.tokens_per_s = took.count() > 0 ? static_cast<double>(result.tokens) / took.count() : 0;
  return result;
}

/// True once the step is decided.
bool Job::Impl::reduce_and_vote() {
  if (!reducer_.reduce(world).ok()) return false;
  const std::span<float> nodes = votes_.norm_nodes();
  reducer_.fold_norm(nodes);
  updates_.vote();
  if (const auto doubt = updates_.take_doubt(commit_.knowledge().applied); doubt && world.leads()) host.log.warning(*doubt);
  return exchange_votes(commit_.vote(std::all_of(nodes.begin(), nodes.end(), [](float x) { return std::isfinite(x); }))).ok();
}

/// What a decided step does to this rank's shard, whatever becomes of the generation.
void Job::Impl::apply_decided() {
  loss_ = decision_.loss;
  if (!decision_.skips()) {
    const float norm = norm_of(decision_), most = updates_.options().clip_norm;
    const float scale = most > 0 && norm > most ? per_slot() * (most / norm) : per_slot();
    state_.update(updates_.optimizer(), updates_.options().lr, scale, commit_.knowledge().applied + 1, reducer_.reduced());
  }
  skipped_ += decision_.skips();
  updates_.decided(commit_.knowledge().applied);
  evaluations_ = 0, evaluation_.clear();
  if (decision_.stops) stop_.decide();
  commit_.applied();
  host.session.progress(StepNumber{commit_.knowledge().applied});
}

float Job::Impl::norm_of(const Decision& decision) const { return std::sqrt(decision.squares) * per_slot(); }

// ---- what users hold

void Slot::report(float loss, std::uint64_t tokens) { static_cast<Job::Impl*>(impl_)->report(*this, loss, tokens); }
void Slot::add(std::string_view name, double value) { static_cast<Job::Impl*>(impl_)->add(*this, name, value); }
void Slot::report(DeviceScalar loss, std::uint64_t tokens) { report(*loss.pointer, tokens); }  // on the host it has arrived
bool Slot::revoked() const { return static_cast<const Job::Impl*>(impl_)->is_revoked(*this); }

Step::Slots Step::slots() {
  static_cast<Job::Impl*>(impl_)->begin_slots();
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
