#pragma once
/// \file Whoever gets a step has the state of all steps before it: the weights of a world in which nothing happened, and host
/// state that was put back with them. So have those who read weights in a slot, and the job ends with the same bits.
/// Where sums follow the world (`Reduce::fast`), all members of one generation have the same ones, whichever they are.

#include <map>
#include <tuple>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/expected.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct SameState {
  static constexpr std::string_view name = "same-state";
  const Expected* expected = nullptr;
  bool follows_the_world = false;

  void on(const PlaceTaken& place, Report&) { generation_[place.worker] = key_of(place.generation); }
  void on(const StepHandedOut& step, Report& report) {
    if (step.step >= expected->parameters.size())
      return report.violate(name, fmt::format("worker#{} gets step {}, which the plan has not", step.worker.value(), step.step));
    for (std::uint32_t unit = 0; unit < step.weights.size(); ++unit) compare(step.worker, step.step, unit, step.weights[unit], report);
    if (step.begun != step.step)
      report.violate(name, fmt::format("worker#{} gets step {} with host state that has begun {}: it was not put back", step.worker.value(),
                                       step.step, step.begun));
  }
  void on(const WeightsRead& read, Report& report) { compare(read.worker, read.step, read.unit, read.hash, report); }
  void on(const JobEnded& ended, Report& report) {
    if (follows_the_world && ended.steps == expected->parameters.size()) {
      const std::uint64_t first = ends_.try_emplace(generation_[ended.worker], ended.state).first->second;
      if (first != ended.state)
        report.violate(name, fmt::format("worker#{} ended its job with state {:016x}, another member of its generation with {:016x}",
                                         ended.worker.value(), ended.state, first));
      return;
    }
    if (ended.steps != expected->parameters.size() || ended.state != expected->final_hash)
      report.violate(name, fmt::format("worker#{} ended its job at step {} with state {:016x}, and should at {} with {:016x}",
                                       ended.worker.value(), ended.steps, ended.state, expected->parameters.size(), expected->final_hash));
  }

 private:
  void compare(ProcessId worker, std::uint64_t step, std::uint32_t unit, std::uint64_t hash, Report& report) {
    if (follows_the_world) {
      if (weights_.try_emplace({generation_[worker], step, unit}, hash).first->second != hash)
        report.violate(name, fmt::format("worker#{} computes step {} with other weights of unit {} than another member of its generation",
                                         worker.value(), step, unit));
      return;
    }
    if (step >= expected->parameters.size() || hash != expected->parameters[step][unit])
      report.violate(name, fmt::format("worker#{} computes step {} with other weights of unit {} than those of {} decided steps",
                                       worker.value(), step, unit, step));
  }
  std::map<ProcessId, GenerationKey> generation_;
  std::map<std::tuple<GenerationKey, std::uint64_t, std::uint32_t>, std::uint64_t> weights_;  // by generation, step and unit
  std::map<GenerationKey, std::uint64_t> ends_;
};

}  // namespace elrun::sim
