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
  no_scope_open("evaluate()");
  if (count == 0) return {.decided = true};
  if (const std::uint64_t slots = evaluation_slots(count, plan().micro_batch); slots > slots_max)
    throw Error{invalid(fmt::format("evaluate({}): {} slots are above the limit of {}", count, slots, slots_max))};
  if (joined_running_) return {};  // the others come straight to next_step()
  // In a step that is not decided: it is done again with all that the program does in it. After the end: there is no other world to come.
  if (step_.is_undecided() || outcome.has_value())
    return world.over() || stage_ != Stage::ready ? Evaluation{} : run_evaluation(count, &forward);
  const std::uint64_t step = decided_.applied();
  for (;;) {
    try {
      meet();
      if (stage_ != Stage::ready) {
        // Of another step now, from a checkpoint or from members that went on without this one: so is the host state.
        if (!transfer_.complete || transfer_.newcomers[world.rank()] || decided_.applied() != step) return {};
        if (const auto known = evaluation_decided_elsewhere()) return remember(*known);
        (void)somebody_evaluates(true);
      }
      if (const Evaluation e = run_evaluation(count, &forward); e.decided) return remember(e);
      if (!world.over()) revoked(world);
    } catch (const Revoked&) {
    }
  }
}

const Evaluation& Job::Impl::remember(const Evaluation& evaluation) {
  decided_.remember(evaluation);
  return evaluation;
}

/// What the evaluation at hand came to, where another member decided it and this one did not hear of that. No member can be ahead by two.
std::optional<Evaluation> Job::Impl::evaluation_decided_elsewhere() {
  for (const MemberStatus& s : statuses_)
    if (s.has_state && s.knowledge.applied == decided_.applied() && s.evaluations == decided_.evaluations() + 1)
      return expect(world, decode_evaluation(s.evaluation));
  return std::nullopt;
}

/// Members of a new generation that have the state tell each other whether they come from next_step() or from an evaluation that goes on.
bool Job::Impl::somebody_evaluates(bool i_do) {
  if (std::ranges::none_of(statuses_, &MemberStatus::has_begun)) return false;
  world.now(Call::meeting);
  std::optional<std::uint32_t> evaluates, steps;
  const std::byte word{i_do};
  const auto words = expect(world, world.all_gather(std::span{&word, 1}));
  for (std::uint32_t r = 0; r < words.size(); ++r) {
    const bool does = words[r].size() == 1 && words[r][0] != std::byte{0};
    if (does && !evaluates) evaluates = r;
    if (!does && !steps && transfer_.complete && !transfer_.newcomers[r]) steps = r;
  }
  if (evaluates && steps)
    throw Error{Failure{Code::mismatch, Remedy::fix_config,
                        fmt::format("rank {} is in {} and rank {} in {} after step {}: make the same calls on all ranks, in the same order",
                                    *evaluates, name_of_call(static_cast<std::uint16_t>(Call::evaluate)), *steps,
                                    name_of_call(static_cast<std::uint16_t>(Call::next_step)), decided_.applied())}};
  return evaluates.has_value();
}

/// One pass. `forward`: null for a newcomer that only serves the others. Not decided: the world is over.
Evaluation Job::Impl::run_evaluation(std::uint64_t count, const std::function<void(Slot&)>* forward) {
  std::vector<std::uint32_t> computing;  // ranks
  for (std::uint32_t r = 0; r < world.size(); ++r)
    if (stage_ == Stage::ready || !transfer_.newcomers[r]) computing.push_back(r);
  world.now(Call::evaluate);
  if (gathers() && !end_phase(phase())) return {};
  EvaluationPart mine{count};
  std::vector<std::vector<std::uint32_t>> by_rank(world.size());
  if (forward != nullptr) {
    const auto assigned =
        assign_slots(static_cast<std::uint32_t>(evaluation_slots(count, plan().micro_batch)), static_cast<std::uint32_t>(computing.size()));
    for (std::size_t i = 0; i < computing.size(); ++i) by_rank[computing[i]] = assigned[i];
  }
  step_.set_evaluating(true);
  for (const std::uint32_t index : by_rank[world.rank()]) {
    if (world.over() || !run_evaluation_slot(count, index, *forward)) break;
    mine.put_slot(slot_.loss(), slot_.tokens(), slot_.sums());
  }
  const Phase ended = phase();
  step_.set_evaluating(false);
  if (world.over() || (gathers() && !end_phase(ended))) return {};
  const auto parts = world.all_gather(forward == nullptr ? ByteSpan{} : mine.bytes());
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
  if (overlaps()) comm_thread_.work_alone(), evaluation_order_.begin();
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
  absence_.ended(slot_.begun());
  slot_.end();
  require(slot_.has_reported() || world.over(), "a slot of an evaluation ended without slot.report(loss, tokens)");
  return true;
}

}  // namespace elrun::inline v0
