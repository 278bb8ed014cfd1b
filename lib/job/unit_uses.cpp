#include "lib/job/unit_uses.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {

void UnitUses::fetch_weights(std::uint32_t unit) {
  job_.require_scopes_ended_well();
  require(job_.held.is_restored(), "use comes after restore()");
  // The others may be in apply() already, where nobody is served.
  if (job_.scopes.fetches(unit) && job_.step.is_open() && !job_.slot.is_open() && job_.rounds.is_through() && !job_.world.over())
    throw Error{
        invalid(fmt::format("unit '{}' is used after the last slot and before apply(), where sharded weights are not gathered: use it "
                            "in a slot, or after apply()",
                            job_.declared.name_of_unit(unit)))};
  // Between `apply`, which may have found the next generation, and `next_step`, which makes this member ready in it, nobody is served.
  const bool came = job_.scopes.fetch(unit, job_.phase(), job_.recovery.is_ready());
  if (!came && job_.outcome.has_value()) {
    Failure f = job_.world.why_over();
    f.what = fmt::format("unit '{}' cannot be gathered after the last step: {}", job_.declared.name_of_unit(unit), f.what);
    throw Error{std::move(f)};
  }
  if (!came && !job_.world.over() && !job_.recovery.is_ready())
    job_.host.log.warning(fmt::format(
        "unit '{}' is used after the world changed and before next_step(): the weights of other ranks did not come, and what is read "
        "of them is unspecified; use it after next_step(), or in an evaluation",
        job_.declared.name_of_unit(unit)));
  // What a program writes now may be made of what did not come.
  if (!came && job_.initial_values.may_write() && job_.world.size() > 1) job_.held.spoil();
  job_.scopes.open(unit, job_.phase(), job_.step.slot());
}

Stream UnitUses::begin_use(UnitState& unit, Stream wanted) {
  job_.require_callable();
  const Stream stream = job_.streams.checked(wanted);
  fetch_weights(unit.index);
  job_.streams.begin(stream);
  unit.program_streams.push_back(stream);
  return stream;
}

Stream UnitUses::begin_gradient(UnitState& unit, Stream wanted) {
  job_.require_callable();
  const Stream stream = job_.streams.checked(wanted);
  require(job_.slot.is_open() && !job_.step.is_evaluating(), "use_grad is for the slots of a step; an evaluation has no gradients");
  job_.scopes.require_use_left(unit.index, job_.slot.index());
  fetch_weights(unit.index);
  job_.scopes.open_gradient(unit.index, job_.phase(), job_.step.own_slot());
  job_.streams.begin(stream);
  unit.program_streams.push_back(stream);
  return stream;
}

void UnitUses::end_use(UnitState& unit, bool gradient, Stream stream) noexcept {
  if (job_.is_forked()) return;  // a copy of the parent's scope, which goes on there
  if (const auto at = std::ranges::find(unit.program_streams, stream.handle(), &Stream::handle); at != unit.program_streams.end())
    unit.program_streams.erase(at);
  try {
    job_.streams.end(stream);
    job_.scopes.close(unit.index, gradient, job_.initial_values);
  } catch (const std::exception& e) {  // of a device
    job_.scope_failure = std::current_exception();
    const auto* error = dynamic_cast<const Error*>(&e);
    job_.world.end(error != nullptr ? error->failure() : Failure{Code::internal, Remedy::exit_process, e.what()});
  }
}

void UnitUses::read(const UnitState& unit, std::span<const std::byte> run, std::span<std::byte> to) {
  job_.require_callable();
  for (const Stream stream : unit.program_streams) job_.streams.end(stream);
  // On the host, and once the job is over, nothing is under way that a read would have to wait for.
  const bool is_still = job_.memory().device().kind == DeviceKind::host || job_.outcome.has_value();
  if (is_still || (job_.world.wait_for_arrays("a tensor that the program reads").ok() && !job_.world.over())) job_.memory().read(run, to);
}

void UnitUses::write_in_order(const UnitState& unit, const std::function<void()>& put) {
  job_.require_callable();
  for (const Stream stream : unit.program_streams) job_.streams.end(stream);
  put();
  for (const Stream stream : unit.program_streams) job_.streams.begin(stream);
}

void UnitUses::write(const UnitState& unit, std::span<const std::byte> from, std::span<std::byte> run) {
  job_.require_callable();
  job_.finish_readers();
  write_in_order(unit, [&] { job_.memory().write(from, run); });
}

void UnitUses::write_gradient(const UnitState& unit, std::span<const std::byte> from, std::span<std::byte> run) {
  write_in_order(unit, [&] { job_.memory().write(from, run); });
}

void UnitUses::write_rounded(const UnitState& unit, const TensorPlace& tensor, std::span<const float> values) {
  const auto at = std::ranges::find(unit.tensors, &tensor, [](const TensorPlace& t) { return &t; }) - unit.tensors.begin();
  const std::uint64_t begin = job_.state.layout().units[unit.index].offsets[static_cast<std::size_t>(at)];
  job_.require_callable();
  job_.finish_readers();
  write_in_order(unit, [&] { job_.state.write_rounded(unit.index, begin, values); });
}

}  // namespace elrun::inline v0
