#include <algorithm>
#include <string_view>
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

void detail::of_other_device(const TensorPlace& tensor, bool gradient) {
  const std::string_view prefix = gradient ? "grad_" : "";
  const std::string what = fmt::format("{}'{}'", gradient ? "the gradient of " : "", tensor.name);
  if (tensor.device.kind == DeviceKind::host)
    throw Error{invalid(fmt::format("{} lies in the host's memory: use {}span(), and {}device_span() only where job.device() is a device",
                                    what, prefix, prefix))};
  throw Error{invalid(
      fmt::format("{} lies on cuda:{}, where no code of the host can reach it: give kernels {}device_span(), and copy with {} and {}", what,
                  tensor.device.index, prefix, gradient ? "read_grad()" : "read()", gradient ? "set_grad()" : "set()"))};
}

namespace {

/// In bytes, of elements of that size.
void require_same_size(const TensorPlace& tensor, std::size_t given, std::size_t has, std::size_t element) {
  if (given != has)
    throw Error{invalid(fmt::format("'{}' has {} elements, and is copied from or to {}", tensor.name, has / element, given / element))};
}
std::size_t element_of(const TensorPlace& tensor, std::span<const std::byte> run) {
  return run.size() / std::max<std::size_t>(element_count(tensor.shape), 1);
}

}  // namespace

void detail::read_tensor(const TensorPlace& tensor, std::span<const std::byte> run, std::span<std::byte> to) {
  require_same_size(tensor, to.size(), run.size(), element_of(tensor, run));
  const auto& unit = *static_cast<const UnitState*>(tensor.unit);
  unit.job->uses.read(unit, run, to);
}

void detail::write_tensor(const TensorPlace& tensor, std::span<const std::byte> from, std::span<std::byte> run) {
  require_same_size(tensor, from.size(), run.size(), element_of(tensor, run));
  const auto& unit = *static_cast<const UnitState*>(tensor.unit);
  if (run.data() == tensor.grad) unit.job->uses.write_gradient(unit, from, run);
  else unit.job->uses.write(unit, from, run);
}

void detail::write_rounded(const TensorPlace& tensor, std::span<const float> values) {
  require_same_size(tensor, values.size_bytes(), element_count(tensor.shape) * sizeof(float), sizeof(float));
  const auto& unit = *static_cast<const UnitState*>(tensor.unit);
  unit.job->uses.write_rounded(unit, tensor, values);
}

const TensorPlace& Unit::declare(std::string_view name, DType type, Shape shape, TensorOptions options) {
  auto& unit = *static_cast<UnitState*>(impl_);
  unit.job->parts.require_callable();
  return unit.job->parts.declared.add_tensor(unit, name, type, std::move(shape), options);
}

UseScope Unit::use(Stream stream) {
  auto& unit = *static_cast<UnitState*>(impl_);
  return {impl_, false, unit.job->uses.begin_use(unit, stream)};
}

UseScope Unit::use_grad(Stream stream) {
  auto& unit = *static_cast<UnitState*>(impl_);
  return {impl_, true, unit.job->uses.begin_gradient(unit, stream)};
}

UseScope::UseScope(UseScope&& other) noexcept
    : unit_{std::exchange(other.unit_, nullptr)}, gradient_{other.gradient_}, stream_{other.stream_} {}

UseScope::~UseScope() {
  if (unit_ == nullptr) return;
  auto& unit = *static_cast<UnitState*>(unit_);
  unit.job->uses.end_use(unit, gradient_, stream_);
}

}  // namespace elrun::inline v0
