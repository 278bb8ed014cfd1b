// What ranks do for each other in the middle of user code: weights are gathered for a scope, leaves handed off after it.

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

Phase Job::Impl::phase() const {
  const std::uint64_t step = decided_.applied();
  if (step_.is_evaluating()) return {Phase::What::evaluation, step, 0};
  if (slot_.is_open()) return {Phase::What::slot, step, slots_through_};
  return {Phase::What::between, step, 0};
}

/// One round, on the job's thread or on the communication thread. Nothing: the world is over.
std::optional<Heard> Job::Impl::round(const Need& said) {
  return round_.run(world, said, {.state = state_, .stream = streams() ? &reducer_.stream() : nullptr, .shards = shard_map_});
}

/// Until this rank has what it needs here, and, where it does not compute meanwhile, others have what it finished.
bool Job::Impl::serve(std::optional<std::uint32_t> unit) {
  return comm_thread_.until(
      [&](PendingRequests& requests) {
        requests.begin(phase());
        if (unit) requests.want(*unit);
      },
      [&](const PendingRequests& requests) { return (!unit || requests.here(*unit)) && (overlaps() || requests.leaves() == 0); });
}

/// This rank needs nothing more in this phase; others may. False: the world is over.
bool Job::Impl::leave_phase(const Phase& phase) {
  if (!comm_thread_.until([&](PendingRequests& requests) { requests.begin(phase); },
                          [&](const PendingRequests& requests) { return requests.at(phase); }))
    return false;
  comm_thread_.tell([](PendingRequests& requests) { requests.end(); });
  return true;
}

/// Serves the others until nobody needs anything more. False: the world is over.
bool Job::Impl::end_phases() {
  if (!comm_thread_.until([](PendingRequests&) {}, [](const PendingRequests& requests) { return requests.over(); })) return false;
  let_go_of_next();
  return true;
}

bool Job::Impl::end_phase(const Phase& phase) { return leave_phase(phase) && end_phases(); }

/// With overlap the next slot may begin while the last leaves of this one are handed off. False: the world is over.
bool Job::Impl::end_slot(const Phase& slot) {
  if (!(overlaps() ? leave_phase(slot) : end_phase(slot))) return false;
  ++slots_through_;
  return true;
}

/// Of a rank that has run all of its slots: others may have more of them. False: the world is over.
bool Job::Impl::end_phases_of_step() {
  while (slots_through_ < phases_)
    if (world.over() || !end_slot({Phase::What::slot, decided_.applied(), slots_through_})) return false;
  return end_phases();
}

/// After the program's return: others may still use weights of which this rank holds a shard. Whatever fails, the job has
/// succeeded.
void Job::Impl::serve_to_the_end() {
  if (outcome.has_value() && gathers()) (void)end_phase(phase());
}

void Job::Impl::no_scope_open(std::string_view call) const {
  if (!in_phases()) return;
  for (std::uint32_t unit = 0; unit < scopes_.size(); ++unit)
    if (scopes_[unit].open > 0)
      throw Error{invalid(fmt::format("unit '{}' is still in a use scope at {}: end the scope before", declared.name_of_unit(unit), call))};
}

void Job::Impl::point_at_weights(std::uint32_t unit) {
  declared.point_at_weights(unit, state_.layout().units[unit], state_.parameters().data(), !gathers() || scopes_[unit].open > 0);
}

/// `space`: where gradients are made now; null: nowhere.
void Job::Impl::point_at_gradients(std::uint32_t unit, float* space) {
  declared.point_at_gradients(unit, state_.layout().units[unit], space);
}

void Job::Impl::begin_use(std::uint32_t unit) {
  const UnitLayout& layout = state_.layout().units[unit];
  require(held_.is_restored(), "use comes after restore()");
  const bool fetches = gathers() && scopes_[unit].open == 0 && layout.trainable > 0;
  // The others may be in apply() already, where nobody is served.
  if (fetches && step_.is_open() && !slot_.is_open() && slots_through_ == phases_ && !world.over())
    throw Error{
        invalid(fmt::format("unit '{}' is used after the last slot and before apply(), where sharded weights are not gathered: use it "
                            "before slots() or after apply()",
                            declared.name_of_unit(unit)))};
  if (fetches) state_.hold_unit(unit);
  const bool hands_off = streams() && slot_.is_open() && !step_.is_evaluating();
  // Between `apply`, which may have found the next generation, and `next_step`, which makes this member ready in it, nobody is served.
  const bool served = (!fetches && !hands_off) ||
                      ((stage_ == Stage::ready || step_.is_evaluating()) && serve(fetches ? std::optional{unit} : std::nullopt));
  if (!served && outcome.has_value()) {
    Failure f = world.why_over();
    f.what = fmt::format("unit '{}' cannot be gathered after the last step: {}", declared.name_of_unit(unit), f.what);
    throw Error{std::move(f)};
  }
  // What a program writes now may be made of what did not come.
  if (!served && initial_values_.may_write() && world.size() > 1) held_.spoil();
  ++scopes_[unit].open;
  if (!fetches) return;
  if (next_unit_ == unit) next_unit_.reset();
  let_go_of_next();  // another one was expected; what was asked for came before this
  point_at_weights(unit);
  if (overlaps() && slot_.is_open()) expect_after(unit);
}

/// Asks for the weights that will probably be used after those of `unit`. They wait in memory, of one unit at a time.
void Job::Impl::expect_after(std::uint32_t unit) {
  PrefetchPredictor& order = step_.is_evaluating() ? evaluation_order_ : slot_order_;
  next_unit_ = order.used(unit);
  const bool has_another_slot = !step_.is_evaluating() && step_.slot() + 1 < my_slots().size();
  if (!next_unit_ && has_another_slot) next_unit_ = order.next_slots_first();
  if (!next_unit_ || scopes_[*next_unit_].open > 0) return;  // whose weights are in use stays when that scope ends
  state_.hold_unit(*next_unit_);
  comm_thread_.tell([&](PendingRequests& requests) { requests.prefetch(*next_unit_); });
}

/// Of what was expected to be used next, and was not. Nothing is on its way.
void Job::Impl::let_go_of_next() {
  if (const auto unit = std::exchange(next_unit_, std::nullopt); unit && scopes_[*unit].open == 0) let_go(*unit);
}

/// Of all weights of a unit but this rank's.
void Job::Impl::let_go(std::uint32_t unit) {
  comm_thread_.tell([&](PendingRequests& requests) { requests.forget(unit); });
  state_.let_go_of_unit(unit);
}

void Job::Impl::begin_gradient(std::uint32_t unit) {
  require(slot_.is_open() && !step_.is_evaluating(), "use_grad is for the slots of a step; an evaluation has no gradients");
  const UnitLayout& layout = state_.layout().units[unit];
  ScopeCounts& counts = scopes_[unit];
  if (counts.in_slot == layout.uses)
    throw Error{invalid(fmt::format("unit '{}' is in its {}. use_grad of slot {}, but its tensors declare {} uses; declare {{.uses = {}}}",
                                    declared.name_of_unit(unit), counts.in_slot + 1, slot_.index(), layout.uses, counts.in_slot + 1))};
  begin_use(unit);
  ++counts.gradients_open;
  const bool first = counts.in_slot++ == 0;
  if (first && streams()) open_leaf(unit, phase());
  if (first && !streams()) reducer_.begin_unit(unit, step_.own_slot());
  point_at_gradients(unit, reducer_.made_in(step_.own_slot()));
}

/// Waits for nobody: what was finished is handed off meanwhile, or in the next call of the job.
void Job::Impl::end_use(std::uint32_t unit, bool gradient) {
  const UnitLayout& layout = state_.layout().units[unit];
  ScopeCounts& counts = scopes_[unit];
  --counts.open;
  if (gradient && --counts.gradients_open == 0) {
    point_at_gradients(unit, nullptr);
    if (streams() && counts.in_slot == layout.uses && layout.trainable > 0) finish_leaf(unit);
  }
  if (!gathers() || counts.open > 0) return;
  if (initial_values_.may_write()) initial_values_.wrote(unit, state_.hash_of_unit(unit));
  if (next_unit_ != unit) let_go(unit);
  point_at_weights(unit);
}

/// Where there is room for it: at most one other leaf that is final waits to be handed off, and none where nothing happens meanwhile.
/// When the world is over there is always room, for nobody else touches leaves any more.
void Job::Impl::open_leaf(std::uint32_t unit, const Phase& slot) {
  (void)comm_thread_.until([&](PendingRequests& requests) { requests.begin(slot); },
                           [&](const PendingRequests& requests) { return requests.at(slot) && requests.leaves() <= (overlaps() ? 1 : 0); });
  reducer_.begin_unit(unit, step_.own_slot());
}

/// Leaves that no scope made in this slot are zeros, or half made: they are final all the same.
void Job::Impl::finish_leaves(const Phase& slot) {
  for (std::uint32_t unit = 0; unit < scopes_.size(); ++unit) {
    const UnitLayout& layout = state_.layout().units[unit];
    if (scopes_[unit].in_slot == layout.uses || layout.trainable == 0) continue;
    if (scopes_[unit].in_slot == 0) open_leaf(unit, slot);
    finish_leaf(unit);
  }
}

void Job::Impl::finish_leaf(std::uint32_t unit) {
  reducer_.stream().finish_leaf(unit);
  comm_thread_.tell([&](PendingRequests& requests) { requests.hand_off(unit); });
}

}  // namespace elrun::inline v0
