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
  unit.job->read(unit, run, to);
}

void detail::write_tensor(const TensorPlace& tensor, std::span<const std::byte> from, std::span<std::byte> run) {
  require_same_size(tensor, from.size(), run.size(), element_of(tensor, run));
  const auto& unit = *static_cast<const UnitState*>(tensor.unit);
  unit.job->write(unit, from, run);
}

void detail::write_rounded(const TensorPlace& tensor, std::span<const float> values) {
  require_same_size(tensor, values.size_bytes(), element_count(tensor.shape) * sizeof(float), sizeof(float));
  const auto& unit = *static_cast<const UnitState*>(tensor.unit);
  unit.job->write_rounded(unit, tensor, values);
}

const TensorPlace& Unit::declare(std::string_view name, DType type, Shape shape, TensorOptions options) {
  auto& unit = *static_cast<UnitState*>(impl_);
  return unit.job->declared.add_tensor(unit, name, type, std::move(shape), options);
}

UseScope Unit::use(Stream stream) {
  auto& unit = *static_cast<UnitState*>(impl_);
  return {impl_, false, unit.job->begin_use(unit, stream)};
}

UseScope Unit::use_grad(Stream stream) {
  auto& unit = *static_cast<UnitState*>(impl_);
  return {impl_, true, unit.job->begin_gradient(unit, stream)};
}

UseScope::UseScope(UseScope&& other) noexcept
    : unit_{std::exchange(other.unit_, nullptr)}, gradient_{other.gradient_}, stream_{other.stream_} {}

UseScope::~UseScope() {
  if (unit_ == nullptr) return;
  auto& unit = *static_cast<UnitState*>(unit_);
  unit.job->end_use(unit, gradient_, stream_);
}

void Job::Impl::fetch_weights(std::uint32_t unit) {
  require_scopes_ended_well();
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

Stream Job::Impl::begin_use(UnitState& unit, Stream wanted) {
  const Stream stream = streams_.checked(wanted);
  fetch_weights(unit.index);
  streams_.begin(stream);
  unit.program_streams.push_back(stream);
  return stream;
}

Stream Job::Impl::begin_gradient(UnitState& unit, Stream wanted) {
  const Stream stream = streams_.checked(wanted);
  require(slot_.is_open() && !step_.is_evaluating(), "use_grad is for the slots of a step; an evaluation has no gradients");
  scopes_.require_use_left(unit.index, slot_.index());
  fetch_weights(unit.index);
  scopes_.open_gradient(unit.index, phase(), step_.own_slot());
  streams_.begin(stream);
  unit.program_streams.push_back(stream);
  return stream;
}

void Job::Impl::end_use(UnitState& unit, bool gradient, Stream stream) noexcept {
  if (const auto at = std::ranges::find(unit.program_streams, stream.handle(), &Stream::handle); at != unit.program_streams.end())
    unit.program_streams.erase(at);
  try {
    streams_.end(stream);
    scopes_.close(unit.index, gradient, initial_values_);
  } catch (const std::exception& e) {  // of a device
    scope_failed_ = std::current_exception();
    const auto* error = dynamic_cast<const Error*>(&e);
    world.end(error != nullptr ? error->failure() : Failure{Code::internal, Remedy::exit_process, e.what()});
  }
}

void Job::Impl::require_scopes_ended_well() {
  if (scope_failed_) std::rethrow_exception(scope_failed_);
}

void Job::Impl::read(const UnitState& unit, std::span<const std::byte> run, std::span<std::byte> to) {
  for (const Stream stream : unit.program_streams) streams_.end(stream);
  if (world.wait_for_arrays("a tensor that the program reads").ok() && !world.over()) memory().read(run, to);
}

void Job::Impl::write_in_order(const UnitState& unit, const std::function<void()>& put) {
  for (const Stream stream : unit.program_streams) streams_.end(stream);
  finish_readers();
  put();
  for (const Stream stream : unit.program_streams) streams_.begin(stream);
}

void Job::Impl::write(const UnitState& unit, std::span<const std::byte> from, std::span<std::byte> run) {
  write_in_order(unit, [&] { memory().write(from, run); });
}

void Job::Impl::write_rounded(const UnitState& unit, const TensorPlace& tensor, std::span<const float> values) {
  const auto at = std::ranges::find(unit.tensors, &tensor, [](const TensorPlace& t) { return &t; }) - unit.tensors.begin();
  const std::uint64_t begin = state_.layout().units[unit.index].offsets[static_cast<std::size_t>(at)];
  write_in_order(unit, [&] { state_.write_rounded(unit.index, begin, values); });
}

}  // namespace elrun::inline v0
