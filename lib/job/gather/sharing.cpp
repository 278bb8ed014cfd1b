// What ranks do for each other in the middle of user code: weights are gathered for a scope, leaves handed off after it.

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

Phase Job::Impl::phase() const {
  const std::uint64_t step = commit_.knowledge().applied;
  if (in_.evaluating) return {Phase::What::evaluation, step, 0};
  if (slot_.is_open()) return {Phase::What::slot, step, in_.phase};
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
  ++in_.phase;
  return true;
}

/// Of a rank that has run all of its slots: others may have more of them. False: the world is over.
bool Job::Impl::end_phases_of_step() {
  while (in_.phase < phases_)
    if (world.over() || !end_slot({Phase::What::slot, commit_.knowledge().applied, in_.phase})) return false;
  return end_phases();
}

/// After the program's return: others may still use weights of which this rank holds a shard. Whatever fails, the job has
/// succeeded.
void Job::Impl::serve_to_the_end() {
  if (outcome.has_value() && gathers()) (void)end_phase(phase());
}

void Job::Impl::no_scope_open(std::string_view call) const {
  if (!in_phases()) return;
  for (const UnitState& unit : units_)
    if (unit.open > 0)
      throw Error{invalid(fmt::format("unit '{}' is still in a use scope at {}: end the scope before", specs_[unit.index].name, call))};
}

void Job::Impl::point_at_weights(UnitState& unit) {
  const UnitLayout& layout = state_.layout().units[unit.index];
  const bool there = !gathers() || unit.open > 0;
  for (std::size_t t = 0; t < unit.tensors.size(); ++t)
    unit.tensors[t].data =
        there || specs_[unit.index].tensors[t].options.frozen ? state_.parameters().data() + layout.begin + layout.offsets[t] : nullptr;
}

/// `space`: where gradients are made now; null: nowhere.
void Job::Impl::point_at_gradients(UnitState& unit, float* space) {
  const UnitLayout& layout = state_.layout().units[unit.index];
  for (std::size_t t = 0; t < unit.tensors.size(); ++t)
    if (!specs_[unit.index].tensors[t].options.frozen)
      unit.tensors[t].grad = space == nullptr ? nullptr : space + layout.gradient_begin + layout.offsets[t];
}

void Job::Impl::begin_use(UnitState& unit) {
  const UnitLayout& layout = state_.layout().units[unit.index];
  require(restored_, "use comes after restore()");
  const bool fetches = gathers() && unit.open == 0 && layout.trainable > 0;
  // The others may be in apply() already, where nobody is served.
  if (fetches && step_open_ && !slot_.is_open() && in_.phase == phases_ && !world.over())
    throw Error{
        invalid(fmt::format("unit '{}' is used after the last slot and before apply(), where sharded weights are not gathered: use it "
                            "before slots() or after apply()",
                            specs_[unit.index].name))};
  if (fetches) state_.hold_unit(unit.index);
  const bool hands_off = streams() && slot_.is_open() && !in_.evaluating;
  // Between `apply`, which may have found the next generation, and `next_step`, which makes this member ready in it, nobody is served.
  const bool served =
      (!fetches && !hands_off) || ((stage_ == Stage::ready || in_.evaluating) && serve(fetches ? std::optional{unit.index} : std::nullopt));
  if (!served && outcome.has_value()) {
    Failure f = world.why_over();
    f.what = fmt::format("unit '{}' cannot be gathered after the last step: {}", specs_[unit.index].name, f.what);
    throw Error{std::move(f)};
  }
  // What a program writes now may be made of what did not come.
  if (!served && may_initialise_ && world.size() > 1) has_state_ = false, overwritten_ = true;
  ++unit.open;
  if (!fetches) return;
  if (next_unit_ == unit.index) next_unit_.reset();
  let_go_of_next();  // another one was expected; what was asked for came before this
  point_at_weights(unit);
  if (overlaps() && slot_.is_open()) expect_after(unit.index);
}

/// Asks for the weights that will probably be used after those of `unit`. They wait in memory, of one unit at a time.
void Job::Impl::expect_after(std::uint32_t unit) {
  PrefetchPredictor& order = in_.evaluating ? evaluation_order_ : slot_order_;
  next_unit_ = order.used(unit);
  const bool has_another_slot = !in_.evaluating && in_.slot + 1 < my_slots().size();
  if (!next_unit_ && has_another_slot) next_unit_ = order.next_slots_first();
  if (!next_unit_ || units_[*next_unit_].open > 0) return;  // whose weights are in use stays when that scope ends
  state_.hold_unit(*next_unit_);
  comm_thread_.tell([&](PendingRequests& requests) { requests.prefetch(*next_unit_); });
}

/// Of what was expected to be used next, and was not. Nothing is on its way.
void Job::Impl::let_go_of_next() {
  if (const auto unit = std::exchange(next_unit_, std::nullopt); unit && units_[*unit].open == 0) let_go(*unit);
}

/// Of all weights of a unit but this rank's.
void Job::Impl::let_go(std::uint32_t unit) {
  comm_thread_.tell([&](PendingRequests& requests) { requests.forget(unit); });
  state_.let_go_of_unit(unit);
}

void Job::Impl::begin_gradient(UnitState& unit) {
  require(slot_.is_open() && !in_.evaluating, "use_grad is for the slots of a step; an evaluation has no gradients");
  const UnitLayout& layout = state_.layout().units[unit.index];
  if (unit.scopes == layout.uses)
    throw Error{invalid(fmt::format("unit '{}' is in its {}. use_grad of slot {}, but its tensors declare {} uses; declare {{.uses = {}}}",
                                    specs_[unit.index].name, unit.scopes + 1, slot_.index(), layout.uses, unit.scopes + 1))};
  begin_use(unit);
  ++unit.gradients_open;
  const bool first = unit.scopes++ == 0;
  if (first && streams()) open_leaf(unit.index, phase());
  if (first && !streams()) reducer_.begin_unit(unit.index, open_slot());
  point_at_gradients(unit, reducer_.made_in(open_slot()));
}

/// Waits for nobody: what was finished is handed off meanwhile, or in the next call of the job.
void Job::Impl::end_use(UnitState& unit, bool gradient) {
  const UnitLayout& layout = state_.layout().units[unit.index];
  --unit.open;
  if (gradient && --unit.gradients_open == 0) {
    point_at_gradients(unit, nullptr);
    if (streams() && unit.scopes == layout.uses && layout.trainable > 0) finish_leaf(unit.index);
  }
  if (!gathers() || unit.open > 0) return;
  if (may_initialise_) written_[unit.index] = state_.hash_of_unit(unit.index);
  if (next_unit_ != unit.index) let_go(unit.index);
  point_at_weights(unit);
}

/// Where there is room for it: at most one other leaf that is final waits to be handed off, and none where nothing happens meanwhile.
/// When the world is over there is always room, for nobody else touches leaves any more.
void Job::Impl::open_leaf(std::uint32_t unit, const Phase& slot) {
  (void)comm_thread_.until([&](PendingRequests& requests) { requests.begin(slot); },
                           [&](const PendingRequests& requests) { return requests.at(slot) && requests.leaves() <= (overlaps() ? 1 : 0); });
  reducer_.begin_unit(unit, open_slot());
}

/// Leaves that no scope made in this slot are zeros, or half made: they are final all the same.
void Job::Impl::finish_leaves(const Phase& slot) {
  for (UnitState& unit : units_) {
    const UnitLayout& layout = state_.layout().units[unit.index];
    if (unit.scopes == layout.uses || layout.trainable == 0) continue;
    if (unit.scopes == 0) open_leaf(unit.index, slot);
    finish_leaf(unit.index);
  }
}

void Job::Impl::finish_leaf(std::uint32_t unit) {
  reducer_.stream().finish_leaf(unit);
  comm_thread_.tell([&](PendingRequests& requests) { requests.hand_off(unit); });
}

}  // namespace elrun::inline v0
