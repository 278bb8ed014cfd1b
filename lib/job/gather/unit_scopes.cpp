#include "lib/job/gather/unit_scopes.hpp"

#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

void UnitScopes::begin() {
  units_.assign(declared_.unit_count(), {});
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) point_at_weights(unit);
}

void UnitScopes::begin_slot(const Phase& phase) {
  const bool evaluates = phase.what == Phase::What::evaluation;
  if (!evaluates)
    for (Counts& unit : units_) unit.in_slot = 0;
  for (Counts& unit : units_) unit.may_be_written = false;
  rounds_.begin_slot(phase);
  if (rounds_.overlaps()) (evaluates ? evaluation_order_ : slot_order_).begin();
}

void UnitScopes::require_no_gradient_open(std::uint32_t slot) const {
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit)
    if (units_[unit].gradients_open > 0)
      throw Error{
          invalid(fmt::format("slot {} ended inside a use_grad scope of unit '{}': let the scope end before the slot, for its "
                              "end hands the gradient off",
                              slot, declared_.name_of_unit(unit)))};
}

void UnitScopes::begin_unused_gradients(std::optional<std::size_t> own_slot) {
  if (reducer_.is_per_slot()) return;
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit)
    if (units_[unit].in_slot == 0) reducer_.begin_unit(unit, own_slot);
}

void UnitScopes::finish_leaves(const Phase& slot, std::optional<std::size_t> own_slot) {
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit) {
    if (units_[unit].in_slot == layout(unit).uses || layout(unit).trainable == 0) continue;
    if (units_[unit].in_slot == 0) open_leaf(unit, slot, own_slot);
    finish_leaf(unit);
  }
}

bool UnitScopes::fetches(std::uint32_t unit) const {
  return state_.parameters_are_sharded() && units_[unit].open == 0 && layout(unit).trainable > 0;
}

bool UnitScopes::is_made(std::uint32_t unit) const { return state_.rounds(unit) && units_[unit].open == 0; }

bool UnitScopes::fetch(std::uint32_t unit, const Phase& phase, bool served) {
  const bool gathers = fetches(unit);
  if (gathers || is_made(unit)) state_.hold_unit(unit);
  const bool hands_off = reducer_.is_per_slot() && phase.what == Phase::What::slot;
  if (!gathers && !hands_off) return true;
  return (served || phase.what == Phase::What::evaluation) && rounds_.serve(phase, gathers ? std::optional{unit} : std::nullopt);
}

void UnitScopes::require_use_left(std::uint32_t unit, std::uint32_t slot) const {
  const std::uint32_t begun = units_[unit].in_slot, uses = layout(unit).uses;
  if (begun == uses)
    throw Error{invalid(fmt::format(
        "unit '{}' is in its {}. use_grad of slot {}, but its tensors declare {} uses; declare {{.uses = {}}}, or, to compute it again, do so inside of one scope and fill the gradient with zeros first",
        declared_.name_of_unit(unit), begun + 1, slot, uses, begun + 1))};
}

void UnitScopes::open(std::uint32_t unit, const Phase& phase, std::size_t slot) {
  const bool gathered = fetches(unit), made = is_made(unit);
  ++units_[unit].open;
  if (!gathered) {
    if (made) point_at_weights(unit);
    return;
  }
  units_[unit].may_be_written = phase.what == Phase::What::between;
  if (next_unit_ == unit) next_unit_.reset();
  let_go_of_next();  // another one was expected; what was asked for came before this
  point_at_weights(unit);
  if (rounds_.overlaps() && phase.what != Phase::What::between) expect_after(unit, phase, slot);
}

/// Asks for the weights that will probably be used after those of `unit`. They wait in memory, of one unit at a time.
void UnitScopes::expect_after(std::uint32_t unit, const Phase& phase, std::size_t slot) {
  const bool evaluates = phase.what == Phase::What::evaluation;
  PrefetchPredictor& order = evaluates ? evaluation_order_ : slot_order_;
  next_unit_ = order.used(unit);
  const bool has_another_slot = !evaluates && slot + 1 < reducer_.my_slots().size();
  if (!next_unit_ && has_another_slot) next_unit_ = order.next_slots_first();
  if (!next_unit_ || units_[*next_unit_].open > 0) return;  // whose weights are in use stays when that scope ends
  state_.hold_unit(*next_unit_);
  rounds_.prefetch(*next_unit_);
}

void UnitScopes::let_go_of_next() {
  if (const auto unit = std::exchange(next_unit_, std::nullopt); unit && units_[*unit].open == 0) let_go(*unit);
}

/// Of all weights of a unit but this rank's.
void UnitScopes::let_go(std::uint32_t unit) {
  rounds_.forget(unit);
  state_.let_go_of_unit(unit);
}

void UnitScopes::open_gradient(std::uint32_t unit, const Phase& phase, std::optional<std::size_t> own_slot) {
  Counts& counts = units_[unit];
  ++counts.gradients_open;
  counts.had_gradient = true;
  if (counts.in_slot++ == 0) {
    if (reducer_.is_per_slot()) open_leaf(unit, phase, own_slot);
    else reducer_.begin_unit(unit, own_slot);
  }
  declared_.point_at_gradients(unit, layout(unit), reducer_.made_in(unit, own_slot));
}

void UnitScopes::close(std::uint32_t unit, bool gradient, InitialValues& initial) {
  Counts& counts = units_[unit];
  --counts.open;
  if (gradient && --counts.gradients_open == 0) {
    declared_.point_at_gradients(unit, layout(unit), nullptr);
    if (reducer_.is_per_slot() && counts.in_slot == layout(unit).uses && layout(unit).trainable > 0) finish_leaf(unit);
  }
  if (counts.open > 0 || !comes_and_goes(unit)) return;
  if (!state_.parameters_are_sharded()) {
    state_.let_go_of_unit(unit);
    return point_at_weights(unit);
  }
  if (counts.may_be_written) state_.keep_written(unit), rounds_.state_changed();
  if (initial.may_write()) initial.wrote(unit, state_.hash_of_unit(unit));
  if (next_unit_ != unit) let_go(unit);
  point_at_weights(unit);
}

void UnitScopes::require_all_closed(std::string_view call) const {
  // On the host whole weights may stay in use: the program itself waits in the call. On a device kernels of a stream of its own would read what is updated.
  const bool may_stay = !rounds_.in_phases() && state_.memory().device().kind == DeviceKind::host;
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit)
    if (units_[unit].open > 0 && !(may_stay && !state_.rounds(unit)))  // what is rounded would stay as it was before the update
      throw Error{
          invalid(fmt::format("unit '{}' is still in a use scope at {}: end the scope before", declared_.name_of_unit(unit), call))};
}

std::optional<std::string> UnitScopes::unused_line() {
  constexpr std::uint32_t units_told = 5;
  if (std::exchange(told_unused_, true)) return std::nullopt;
  std::string names;
  std::uint32_t count = 0;
  for (std::uint32_t unit = 0; unit < units_.size(); ++unit)
    if (!units_[unit].had_gradient && layout(unit).trainable > 0 && ++count <= units_told)
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", declared_.name_of_unit(unit));
  if (count == 0) return std::nullopt;
  return fmt::format(
      "no slot of this worker had a use_grad of {}{} in the job's first step: with gradients of zeros, weight decay and moments still move what trains there. Declare "
      "{{.frozen = true}} what never trains, and {{.decay = false}} what has to stand still until it trains",
      names, count > units_told ? fmt::format(" and {} more", count - units_told) : "");
}

bool UnitScopes::end_phase(const Phase& phase) {
  if (!rounds_.end_phase(phase)) return false;
  let_go_of_next();
  return true;
}

bool UnitScopes::end_step(std::uint64_t step) {
  if (!rounds_.end_step(step)) return false;
  let_go_of_next();
  return true;
}

void UnitScopes::point_at_weights(std::uint32_t unit) {
  const bool there = !comes_and_goes(unit) || units_[unit].open > 0;
  declared_.point_at_weights(unit, layout(unit), there ? state_.seen(unit).data() : nullptr, state_.frozen(unit).data());
}

void UnitScopes::open_leaf(std::uint32_t unit, const Phase& slot, std::optional<std::size_t> own_slot) {
  rounds_.wait_for_room(slot);
  reducer_.begin_unit(unit, own_slot);
}

void UnitScopes::finish_leaf(std::uint32_t unit) {
  reducer_.stream().finish_leaf(unit);
  rounds_.hand_off(unit);
}

}  // namespace elrun::inline v0
