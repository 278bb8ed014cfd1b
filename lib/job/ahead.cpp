#include "lib/job/declare/sampler.hpp"
#include "lib/job/job_impl.hpp"

namespace elrun::inline v0 {

/// A guess for who reads ahead: when the world changes, other slots come, and nobody is wrong but the guess.
std::vector<std::vector<std::uint64_t>> Job::Impl::samples_ahead(std::size_t count) const {
  std::vector<std::vector<std::uint64_t>> out;
  if (!held_.is_restored() || my_slots().empty()) return out;
  std::uint64_t step = decided_.applied();
  std::size_t next =
      step_.is_open() ? step_.slot() + (slot_.is_open() && !step_.is_evaluating() && !step_.audit().is_running() ? 1 : 0) : 0;
  for (; step < plan().steps; ++step, next = 0)
    for (; next < my_slots().size(); ++next) {
      if (out.size() == count) return out;
      samples_of_slot(plan(), step, my_slots()[next], out.emplace_back(plan().micro_batch));
    }
  return out;
}

std::vector<std::vector<std::uint64_t>> Job::samples_ahead(std::size_t count) const { return impl_->samples_ahead(count); }

}  // namespace elrun::inline v0
