// Evaluations. One that is called between two steps is decided by all members or by none: what follows from it in the program is part of the
// bits. Where the world is lost in it, the survivors meet in the next generation, still in this call. Whoever knows the result tells it;
// where nobody does, they compute it again. Newcomers have no part in it, but hold shards that others need: they serve until it is decided.

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/declare/assign.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint64_t evaluation_step = ~std::uint64_t{0};  // random numbers of a step that no plan reaches

}  // namespace

Evaluation Job::Impl::evaluate(std::uint64_t count, const std::function<void(Slot&)>& forward) {
  require(held_.is_restored(), "evaluate comes after restore()");
  require(!slot_.is_open() || world.over(), "evaluate is called inside a slot; call it between steps");
  scopes_.require_all_closed("evaluate()");
  if (count == 0) return {.decided = true};
  if (const std::uint64_t slots = evaluation_slots(count, plan().micro_batch); slots > slots_max)
    throw Error{invalid(fmt::format("evaluate({}): {} slots are above the limit of {}", count, slots, slots_max))};
  if (held_.joined_running()) return {};  // the others come straight to next_step()
  // In a step that is not decided: it is done again with all that the program does in it. After the end: there is no other world to come.
  if (step_.is_undecided() || outcome.has_value()) {
    Evaluation e;
    if (!world.over() && recovery_.is_ready() && compared_before_evaluation()) e = run_evaluation(count, &forward);
    if (!e.decided) step_.lose_evaluation();
    return e;
  }
  const std::uint64_t step = decided_.applied();
  for (;;) {
    try {
      meet();
      if (!recovery_.is_ready()) {
        const StateTransfer& transfer = recovery_.transfer();
        // Of another step now, from a checkpoint or from members that went on without this one: so is the host state.
        if (!transfer.complete || transfer.newcomers[world.rank()] || decided_.applied() != step) return {};
        if (const auto known = recovery_.evaluation_decided_elsewhere(step, decided_.evaluations())) {
          const Evaluation e = expect(world, decode_evaluation(*known));
          decided_.remember(e);
          return e;
        }
        (void)recovery_.somebody_evaluates(world, true, step);
      }
      if (const Evaluation e = run_evaluation(count, &forward); e.decided) {
        decided_.remember(e);
        return e;
      }
      if (!world.over()) revoked(world);
    } catch (const Revoked&) {
    }
  }
}

/// In a step: what follows from an evaluation is printed before the votes are heard. False: the world is over.
bool Job::Impl::compared_before_evaluation() {
  if (!initial_values_.is_left_to_votes()) return true;
  try {
    world.now(Call::evaluate);
    compare_now();
    return true;
  } catch (const Revoked&) {
    return false;
  }
}

/// One pass. `forward`: null for a newcomer that only serves the others. Not decided: the world is over.
Evaluation Job::Impl::run_evaluation(std::uint64_t count, const std::function<void(Slot&)>* forward) {
  std::vector<std::uint32_t> computing;  // ranks
  for (std::uint32_t r = 0; r < world.size(); ++r)
    if (recovery_.runs_evaluations(r)) computing.push_back(r);
  world.now(Call::evaluate);
  if (gathers() && !scopes_.end_phase(phase())) return {};
  EvaluationPart mine{count};
  std::vector<std::vector<std::uint32_t>> by_rank(world.size());
  if (forward != nullptr) {
    const auto assigned =
        assign_slots(static_cast<std::uint32_t>(evaluation_slots(count, plan().micro_batch)), static_cast<std::uint32_t>(computing.size()));
    for (std::size_t i = 0; i < computing.size(); ++i) by_rank[computing[i]] = assigned[i];
  }
  step_.set_evaluating(true);
  program_timeout_.begin_slots();
  for (const std::uint32_t index : by_rank[world.rank()]) {
    if (world.over() || !run_evaluation_slot(count, index, *forward) || !settle_loss()) break;
    mine.put_slot(slot_.loss(), slot_.tokens(), slot_.sums());
  }
  const Phase ended = phase();
  step_.set_evaluating(false);
  if (world.over() || (gathers() && !scopes_.end_phase(ended))) return {};
  const auto parts = world.all_gather(forward == nullptr ? ByteSpan{} : mine.bytes());
  times_.together(host.clock.now(), world.exchanged());
  if (!parts.ok() || forward == nullptr) return {};
  auto result = fold_evaluation(count, plan().micro_batch, by_rank, *parts, world.rank());
  if (result.ok()) return std::move(result).value();
  if (result.failure().code == Code::mismatch) throw Error{std::move(result).failure()};
  world.end(result.failure());
  return {};
}

/// False: an exception came out of it, and the world is over. Nothing of it counts.
bool Job::Impl::run_evaluation_slot(std::uint64_t count, std::uint32_t index, const std::function<void(Slot&)>& forward) {
  const std::uint64_t first = index * plan().micro_batch;
  auto& samples = slot_.samples();
  samples.resize(std::min(plan().micro_batch, count - first));
  std::iota(samples.begin(), samples.end(), first);
  Slot& slot = slot_.begin(this, world.membership().generation.number, index, slot_stream(plan().seed, evaluation_step, index));
  scopes_.begin_slot(phase());
  slot_.begin_clock(host.clock.now());
  try {
    forward(slot);
  } catch (const std::exception& e) {
    if (!world.over() || !host.session.place().elastic) throw;
    slot_.end();
    host.log.info(fmt::format(
        "an exception came out of a slot of an evaluation that the change of the world had revoked ({}): the slot does not count",
        e.what()));
    return false;
  }
  program_timeout_.ended(slot_.begun());
  slot_.end();
  require(slot_.has_reported() || world.over(), "a slot of an evaluation ended without slot.report(loss, tokens)");
  return true;
}

}  // namespace elrun::inline v0
