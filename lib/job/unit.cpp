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

}  // namespace elrun::inline v0
