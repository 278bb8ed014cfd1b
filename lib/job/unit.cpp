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
  return unit.job->declared.add_tensor(unit, name, type, std::move(shape), options);
}

UseScope Unit::use(Stream stream) {
  auto& unit = *static_cast<UnitState*>(impl_);
  unit.job->begin_use(unit.index);
  return {impl_, false, stream};
}

UseScope Unit::use_grad(Stream stream) {
  auto& unit = *static_cast<UnitState*>(impl_);
  unit.job->begin_gradient(unit.index);
  return {impl_, true, stream};
}

UseScope::UseScope(UseScope&& other) noexcept
    : unit_{std::exchange(other.unit_, nullptr)}, gradient_{other.gradient_}, stream_{other.stream_} {}

UseScope::~UseScope() {
  if (unit_ == nullptr) return;
  auto& unit = *static_cast<UnitState*>(unit_);
  unit.job->end_use(unit.index, gradient_);
}

void Job::Impl::begin_use(std::uint32_t unit) {
  require(held_.is_restored(), "use comes after restore()");
  // The others may be in apply() already, where nobody is served.
  if (scopes_.fetches(unit) && step_.is_open() && !slot_.is_open() && rounds_.is_through() && !world.over())
    throw Error{
        invalid(fmt::format("unit '{}' is used after the last slot and before apply(), where sharded weights are not gathered: use it "
                            "before slots() or after apply()",
                            declared.name_of_unit(unit)))};
  // Between `apply`, which may have found the next generation, and `next_step`, which makes this member ready in it, nobody is served.
  const bool came = scopes_.fetch(unit, phase(), recovery_.is_ready());
  if (!came && outcome.has_value()) {
    Failure f = world.why_over();
    f.what = fmt::format("unit '{}' cannot be gathered after the last step: {}", declared.name_of_unit(unit), f.what);
    throw Error{std::move(f)};
  }
  if (!came && !world.over() && !recovery_.is_ready())
    host.log.warning(fmt::format(
        "unit '{}' is used after the world changed and before next_step(): the weights of other ranks did not come, and what is read "
        "of them is unspecified; use it after next_step(), or in an evaluation",
        declared.name_of_unit(unit)));
  // What a program writes now may be made of what did not come.
  if (!came && initial_values_.may_write() && world.size() > 1) held_.spoil();
  scopes_.open(unit, phase(), step_.slot());
}

void Job::Impl::begin_gradient(std::uint32_t unit) {
  require(slot_.is_open() && !step_.is_evaluating(), "use_grad is for the slots of a step; an evaluation has no gradients");
  scopes_.require_use_left(unit, slot_.index());
  begin_use(unit);
  scopes_.open_gradient(unit, phase(), step_.own_slot());
}

void Job::Impl::end_use(std::uint32_t unit, bool gradient) { scopes_.close(unit, gradient, initial_values_); }

}  // namespace elrun::inline v0
