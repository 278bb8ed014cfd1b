#include "lib/job/job_parts.hpp"

#include <cstdlib>

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
  if (!begins_again) return;
  // The others run their programs again, and wait for this one's without a limit of their own.
  constexpr int polite = 8, most = 100;
  if (++calls_too_late > most) {
    host.log.error(
        "the state was lost, and the program catches every exception by which it is left, and goes on: this process ends, so that another one can run it. Let what next_step() throws out of the program");
    std::_Exit(1);
  }
  if (calls_too_late > polite) throw BeginAgainNow{};
  throw BeginAgain{};
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
  append_device(out, host.device, host.device_model);
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

void JobParts::require_evaluations_ended() const {
  require(
      !step.has_left_evaluation() || world.over(),
      "an evaluation was left by an exception of its program, and the other ranks may be in it still: let what `forward` throws out of the program, or find out "
      "before evaluate() whether it can be run");
}

bool JobParts::await_loss() {
  const auto place = slot.loss_to_come();
  if (!place) return true;
  if (!world.wait_for_arrays("a slot's loss").ok()) return false;
  slot.set_loss(losses->at(*place));
  return true;
}

}  // namespace elrun::inline v0
