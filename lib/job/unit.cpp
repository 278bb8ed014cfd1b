#include <utility>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

void detail::out_of_scope(const TensorPlace* tensor, bool gradient) {
  if (tensor == nullptr) throw Error{invalid("a tensor is used that no unit has declared: take it from unit.tensor(name, shape)")};
  throw Error{invalid(
      gradient ? fmt::format("the gradient of '{}' is used where there is none: inside a slot, between auto scope = unit.use_grad() "
                             "and that scope's end, and never of a frozen tensor",
                             tensor->name)
               : fmt::format("'{}' is used where it has no memory: after seal(), and between auto scope = unit.use() and that "
                             "scope's end",
                             tensor->name))};
}

const TensorPlace& Unit::declare(std::string_view name, DType type, Shape shape, TensorOptions options) {
  auto& unit = *static_cast<UnitState*>(impl_);
  return unit.job->declare(unit, name, type, std::move(shape), options);
}

UseScope Unit::use(Stream stream) {
  static_cast<UnitState*>(impl_)->job->begin_use();
  return {impl_, false, stream};
}

UseScope Unit::use_grad(Stream stream) {
  auto& unit = *static_cast<UnitState*>(impl_);
  unit.job->begin_gradient(unit);
  return {impl_, true, stream};
}

UseScope::UseScope(UseScope&& other) noexcept
    : unit_{std::exchange(other.unit_, nullptr)}, gradient_{other.gradient_}, stream_{other.stream_} {}

// Weights stay while they are whole on every rank; gradients are folded when their slot ends.
UseScope::~UseScope() {
  if (unit_ == nullptr || !gradient_) return;
  auto& unit = *static_cast<UnitState*>(unit_);
  unit.job->end_gradient(unit);
}

TensorPlace& Job::Impl::declare(UnitState& unit, std::string_view name, DType type, Shape shape,
                                TensorOptions options) {
  require(!sealed_, "a tensor is declared after seal(); declare all of them before");
  specs_[unit.index].tensors.push_back({std::string{name}, type, shape, options});
  unit.tensors.push_back({nullptr, nullptr, std::move(shape), fmt::format("{}/{}", specs_[unit.index].name, name)});
  return unit.tensors.back();
}

void Job::Impl::begin_use() const { require(restored_, "use comes after restore()"); }

void Job::Impl::begin_gradient(UnitState& unit) {
  require(in_.open && !in_.evaluating, "use_grad is for the slots of a step; an evaluation has no gradients");
  const UnitLayout& layout = layout_.units[unit.index];
  if (++unit.scopes > layout.uses)
    throw Error{invalid(fmt::format(
        "unit '{}' is in its {}. use_grad of slot {}, but its tensors declare {} uses; declare {{.uses = {}}}",
        specs_[unit.index].name, unit.scopes, slot_.index(), layout.uses, unit.scopes))};
  if (unit.scopes == 1) zero_gradient(unit);
  ++unit.open_scopes;
  float* const gradient = leaf() + layout.gradient_begin;
  for (std::size_t t = 0; t < unit.tensors.size(); ++t)
    if (!specs_[unit.index].tensors[t].options.frozen) unit.tensors[t].grad = gradient + layout.offsets[t];
}

void Job::Impl::end_gradient(UnitState& unit) noexcept {
  if (--unit.open_scopes > 0) return;
  for (TensorPlace& tensor : unit.tensors) tensor.grad = nullptr;
}

void Job::Impl::zero_gradient(const UnitState& unit) {
  const UnitLayout& layout = layout_.units[unit.index];
  std::fill_n(leaf() + layout.gradient_begin, layout.trainable, 0.0f);
}

}  // namespace elrun::inline v0
