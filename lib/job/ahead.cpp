#include <span>

#include "lib/job/declare/assign.hpp"
#include "lib/job/declare/sampler.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {
namespace {

/// A guess for who reads ahead: when the world changes, other slots come, and nobody is wrong but the guess.
std::vector<std::vector<std::uint64_t>> samples_ahead_of(const JobParts& job, std::size_t count) {
  std::vector<std::vector<std::uint64_t>> out;
  if (!job.held.is_restored()) return out;
  if (const auto& evaluation = job.step.evaluation()) {  // its ids mean nothing in the data of a step, and the other way round
    for (std::size_t next = evaluation->taken; next < evaluation->slots.size() && out.size() < count; ++next)
      out.push_back(samples_of_evaluation(evaluation->count, job.plan().micro_batch, evaluation->slots[next]));
    return out;
  }
  std::uint64_t step = job.decided.applied();
  std::size_t next = job.step.is_open() ? job.step.slot() + (job.slot.is_open() && !job.step.audit().is_running() ? 1 : 0) : 0;
  // In the first step of a world newcomers may have none.
  const auto later = job.shards.all_compute()
                         ? job.my_slots()
                         : assign_slots(static_cast<std::uint32_t>(job.plan().slots()), job.world.size())[job.world.rank()];
  const bool is_first = step == job.recovery.settled().newest_step;
  std::span<const std::uint32_t> slots = is_first ? job.my_slots() : later;
  if (later.empty() && slots.empty()) return out;
  for (; step < job.plan().steps; ++step, next = 0, slots = later)
    for (; next < slots.size(); ++next) {
      if (out.size() == count) return out;
      samples_of_slot(job.plan(), step, slots[next], out.emplace_back(job.plan().micro_batch));
    }
  return out;
}

}  // namespace

std::vector<std::vector<std::uint64_t>> Job::samples_ahead(std::size_t count) const { return samples_ahead_of(impl_->parts, count); }

}  // namespace elrun::inline v0
