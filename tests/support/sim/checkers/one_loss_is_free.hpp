#pragma once
/// \file Where the state has copies on two nodes, no step that a living member has applied is done again while only one worker, or one node with all
/// of its workers, was lost. It needs no reckoning of who holds what, and so it is more than nothing-lost, which excuses what members do not hold
/// together: here the product has to have laid the copies so that they do. With an only node, with state of which there is one copy, or
/// after a second loss there is no such promise; whether something was done again then is counted.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct OneLossIsFree {
  static constexpr std::string_view name = "one-loss-is-free";
  bool has_copies = false;  ///< On two nodes, and nothing else than crashes at actions goes wrong
  bool went_back = false;   ///< A step that a living member had applied was done again.

  void on(const DiedTogether& died, Report&) {
    ++losses_;
    for (const ProcessId worker : died.workers) dead_.insert(worker);
    for (const ProcessId worker : died.workers) applied_.erase(worker);
  }
  void on(const StepApplied& applied, Report&) {
    if (!dead_.contains(applied.worker)) applied_[applied.worker] = applied.steps;
  }
  void on(const StepHandedOut& step, Report& report) {
    const auto newest = std::ranges::max_element(applied_, {}, [](const auto& one) { return one.second; });
    if (newest == applied_.end() || step.step >= newest->second) return;
    went_back = true;
    if (has_copies && losses_ <= 1)
      report.violate(
          name,
          fmt::format("worker#{} gets step {}, although worker#{} lives and had applied {} steps, and only one worker or node was lost",
                      step.worker.value(), step.step, newest->first.value(), newest->second));
    applied_.clear();  // all go on from the older state
  }

 private:
  std::uint32_t losses_ = 0;
  std::set<ProcessId> dead_;
  std::map<ProcessId, std::uint64_t> applied_;  // by those who live
};

}  // namespace elrun::sim
