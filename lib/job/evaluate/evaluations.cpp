#include "lib/job/evaluate/evaluations.hpp"

#include <fmt/format.h>

#include "lib/base/failure.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/revoked.hpp"

namespace elrun::inline v0 {

Evaluation Evaluations::evaluate(std::uint64_t count, const std::function<void(Slot&)>& forward) {
  job_.require_callable();
  require(job_.held.is_restored(), "evaluate comes after restore()");
  job_.require_evaluations_ended();
  require(!job_.slot.is_open() || job_.world.over(), "evaluate is called inside a slot; call it between steps");
  job_.scopes.require_all_closed("evaluate()");
  if (count == 0) return {.decided = true};
  if (const std::uint64_t slots = evaluation_slots(count, job_.plan().micro_batch); slots > slots_max)
    throw Error{invalid(fmt::format("evaluate({}): {} slots are above the limit of {}", count, slots, slots_max))};
  if (job_.held.joined_running()) return {};  // the others come straight to next_step()
  // In a step that is not decided: it is done again with all that the program does in it. After the end: there is no other world to come.
  if (job_.step.is_undecided() || job_.outcome.has_value()) {
    Evaluation e;
    if (!job_.world.over() && job_.recovery.is_ready() && comparison_.before_evaluation()) e = pass_.run(count, &forward);
    if (!e.decided) job_.step.lose_evaluation();
    return e;
  }
  const std::uint64_t step = job_.decided.applied();
  for (;;) {
    try {
      change_.meet();
      if (!job_.recovery.is_ready()) {
        const StateTransfer& transfer = job_.recovery.transfer();
        // Of another step now, from a checkpoint or from members that went on without this one: so is the host state.
        if (!transfer.complete || transfer.newcomers[job_.world.rank()] || job_.decided.applied() != step) return {};
        if (const auto known = job_.recovery.evaluation_decided_elsewhere(step, job_.decided.evaluations())) {
          const Evaluation e = expect(job_.world, decode_evaluation(*known));
          job_.decided.remember(e);
          return e;
        }
        (void)job_.recovery.somebody_evaluates(job_.world, true, step);
        change_.begin_transfer_beside();
      }
      if (const Evaluation e = pass_.run(count, &forward); e.decided) {
        job_.decided.remember(e);
        return e;
      }
      if (!job_.world.over()) revoked(job_.world);
    } catch (const Revoked&) {
    }
  }
}

}  // namespace elrun::inline v0
