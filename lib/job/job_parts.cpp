#include "lib/job/job_parts.hpp"

#include <fmt/format.h>

#include "lib/job/begin_again.hpp"
#include "lib/job/declare/device_class.hpp"
#include "lib/job/declare/tensor_options.hpp"

namespace elrun::inline v0 {

void JobParts::require_callable() const {
  if (is_forked())
    throw Error{
        {.code = Code::refused,
         .remedy = Remedy::exit_process,
         .what = fmt::format(
             "this process was forked from worker {}, and only that one may call its job: end a child by _exit, also where its exec fails",
             process)}};
  if (begins_again) throw BeginAgain{};
}

void JobParts::begin_again() {
  begins_again = true;
  throw BeginAgain{};
}

Phase JobParts::phase() const {
  const std::uint64_t number = decided.applied();
  if (step.is_evaluating()) return {Phase::What::evaluation, number, 0};
  if (slot.is_open()) return {Phase::What::slot, number, rounds.slots_through()};
  return {Phase::What::between, number, 0};
}

std::vector<Aux> JobParts::host_state() const {
  std::vector<Aux> out;
  append_to(out, decided.progress(plan().steps));
  append_device(out, host.device);
  append_tensor_options(out, declared.units(), state.layout());
  variables.append_to(out);
  return out;
}

void JobParts::take_host_state(const std::vector<Aux>& aux) {
  const JobProgress progress = progress_of(aux);
  variables.load(aux);
  decided.load(progress, world.membership(), plan().steps);
}

void JobParts::keep_host_state() {
  decided.hand_out();
  variables.keep();
}

void JobParts::require_scopes_ended_well() const {
  if (scope_failure) std::rethrow_exception(scope_failure);
}

bool JobParts::await_loss() {
  const auto place = slot.loss_to_come();
  if (!place) return true;
  if (!world.wait_for_arrays("a slot's loss").ok()) return false;
  slot.set_loss(losses->at(*place));
  return true;
}

}  // namespace elrun::inline v0
