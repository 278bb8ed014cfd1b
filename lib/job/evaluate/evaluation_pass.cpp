#include "lib/job/evaluate/evaluation_pass.hpp"

#include <fmt/format.h>

#include "lib/job/declare/assign.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/fp_environment.hpp"

namespace elrun::inline v0 {
namespace {

static_assert(evaluation_part_bytes_max <= gather_bytes_max);
constexpr std::uint64_t evaluation_step = ~std::uint64_t{0};  // random numbers of a step that no plan reaches

}  // namespace

Evaluation EvaluationPass::run(std::uint64_t count, const std::function<void(Slot&)>* forward) {
  std::vector<bool> computes;  // by rank
  for (std::uint32_t r = 0; r < job_.world.size(); ++r) computes.push_back(job_.recovery.runs_evaluations(r));
  job_.world.now(Call::evaluate);
  if (job_.gathers() && !job_.scopes.end_phase(job_.phase())) return {};
  EvaluationPart mine{count};
  std::vector<std::vector<std::uint32_t>> by_rank(job_.world.size());
  if (forward != nullptr) by_rank = assign_slots(static_cast<std::uint32_t>(evaluation_slots(count, job_.plan().micro_batch)), computes);
  job_.step.begin_evaluation(count, by_rank[job_.world.rank()]);
  job_.program_timeout.begin_evaluation();
  for (const std::uint32_t index : by_rank[job_.world.rank()]) {
    job_.step.take_evaluation_slot();
    if (job_.world.over() || !run_slot(count, index, *forward) || !job_.await_loss()) break;
    mine.put_slot(job_.slot.loss(), job_.slot.tokens(), job_.slot.sums());
  }
  const Phase ended = job_.phase();
  job_.step.end_evaluation();
  if (job_.world.over() || (job_.gathers() && !job_.scopes.end_phase(ended))) return {};
  const auto parts = job_.world.all_gather(forward == nullptr ? ByteVector{} : mine.bytes());
  job_.program_timeout.begin_slots();
  job_.times.together(job_.host.clock.now(), job_.world.exchanged());
  if (!parts.ok() || forward == nullptr) return {};
  auto result = [&] {
    const DefaultFpEnvironment as_anywhere;  // nobody has asked for the program's mode
    return fold_evaluation(count, job_.plan().micro_batch, by_rank, *parts, job_.world.rank());
  }();
  if (result.ok()) return std::move(result).value();
  if (result.failure().code == Code::mismatch) throw Error{std::move(result).failure()};
  job_.world.end(result.failure());
  return {};
}

/// False: an exception came out of it, and the world is over. Nothing of it counts.
bool EvaluationPass::run_slot(std::uint64_t count, std::uint32_t index, const std::function<void(Slot&)>& forward) {
  job_.slot.samples() = samples_of_evaluation(count, job_.plan().micro_batch, index);
  Slot& slot =
      job_.slot.begin(job_.handle, job_.world.membership().generation.number, index, slot_stream(job_.plan().seed, evaluation_step, index));
  job_.scopes.begin_slot(job_.phase());
  job_.slot.begin_clock(job_.host.clock.now());
  try {
    forward(slot);
  } catch (const std::exception& e) {
    if (!job_.world.over() || !job_.host.session.place().elastic) {
      job_.step.leave_evaluation();
      throw;
    }
    job_.slot.end();
    job_.host.log.info(fmt::format(
        "an exception came out of a slot of an evaluation that the change of the world had revoked ({}): the slot does not count",
        e.what()));
    return false;
  }
  job_.program_timeout.ended(job_.slot.begun());
  job_.slot.end();
  require(job_.slot.has_reported() || job_.world.over(), "a slot of an evaluation ended without slot.report(loss, tokens)");
  return true;
}

}  // namespace elrun::inline v0
