#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

Unit::Slots Unit::declare(std::string_view name, DType type, Shape shape, TensorOptions options) {
  auto& unit = *static_cast<UnitState*>(impl_);
  TensorState& t = unit.job->declare(unit, name, type, std::move(shape), options);
  return {&t.data, &t.grad, &t.shape};
}

UseScope Unit::use(Stream stream) { return {impl_, false, stream}; }

UseScope Unit::use_grad(Stream stream) {
  auto& unit = *static_cast<UnitState*>(impl_);
  unit.job->begin_gradient(unit);
  return {impl_, true, stream};
}

UseScope::UseScope(UseScope&& other) noexcept
    : unit_{std::exchange(other.unit_, nullptr)}, gradient_{other.gradient_}, stream_{other.stream_} {}

// Nothing to hand back while parameters and gradients are whole on every rank: weights stay, gradients are folded when
// their slot ends.
UseScope::~UseScope() = default;

TensorState& Job::Impl::declare(UnitState& unit, std::string_view name, DType type, Shape shape,
                                TensorOptions options) {
  require(!sealed_, "a tensor is declared after seal(); declare all of them before");
  specs_[unit.index].tensors.push_back({std::string{name}, type, shape, options});
  unit.tensors.push_back({nullptr, nullptr, std::move(shape)});
  return unit.tensors.back();
}

void Job::Impl::begin_gradient(UnitState& unit) {
  require(in_.open && !in_.evaluating, "use_grad is for the slots of a step; an evaluation has no gradients");
  const UnitLayout& layout = layout_.units[unit.index];
  if (++unit.scopes > layout.uses)
    throw Error{invalid(fmt::format(
        "unit '{}' is in its {}. use_grad of slot {}, but its tensors declare {} uses; declare {{.uses = {}}}",
        specs_[unit.index].name, unit.scopes, slot_.index(), layout.uses, unit.scopes))};
  if (unit.scopes == 1) zero_gradient(unit);
}

void Job::Impl::zero_gradient(const UnitState& unit) {
  const UnitLayout& layout = layout_.units[unit.index];
  std::fill_n(gradients_.leaf(in_.slot) + layout.gradient_begin, layout.trainable, 0.0f);
}

}  // namespace elrun::inline v0
