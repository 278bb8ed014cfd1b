#pragma once
/// \file A step is decided with one content, whoever decides it and however often it had to be done: its loss, norm and tokens,
/// its slots, each run by one member of a generation, and its samples. In an epoch each sample is in one
/// decided step. Where sums follow the world (`Reduce::fast`), loss and norm do, too, and are not compared.

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include <elrun/plan.hpp>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct DecidedOnce {
  static constexpr std::string_view name = "decided-once";
  static constexpr std::string_view samples_name = "each-sample-once";
  Plan plan;

  void on(const StepHandedOut& step, Report&) { got_.insert({step.worker, step.step}); }
  void on(const SlotRun& run, Report& report) {
    const auto [at, fresh] = runs_[{run.step, key_of(run.generation)}].try_emplace(run.slot, Run{run.worker, run.samples});
    if (!fresh && at->second.worker != run.worker)
      report.violate(samples_name,
                     fmt::format("worker#{} and worker#{} both ran slot {} of step {} in generation {}", at->second.worker.value(),
                                 run.worker.value(), run.slot, run.step, to_string(run.generation)));
  }
  void on(const StepReported& step, Report& report) {
    const auto [first, fresh] = content_.try_emplace(step.step, Content{step.loss, step.norm, step.tokens, {}});
    const bool same_sums = plan.reduce == Reduce::fast || (first->second.loss == step.loss && first->second.norm == step.norm);
    if (!same_sums || first->second.tokens != step.tokens)
      report.violate(name, fmt::format("worker#{} has decided step {} with loss {}, norm {} and {} tokens, another one with {}, {} and {}",
                                       step.worker.value(), step.step, step.loss, step.norm, step.tokens, first->second.loss,
                                       first->second.norm, first->second.tokens));
    if (!got_.contains({step.worker, step.step}))
      return report.violate(name, fmt::format("worker#{} has decided step {}, which it never got", step.worker.value(), step.step));
    // Whoever has voted applies a step that is decided, also when that was in an earlier generation, and it did it again since:
    // the bits are the same.
    const auto whole = std::find_if(runs_.begin(), runs_.end(),
                                    [&](const auto& runs) { return runs.first.first == step.step && runs.second.size() == plan.slots(); });
    if (whole == runs_.end())
      return report.violate(samples_name,
                            fmt::format("step {} was decided, and in no generation all of its {} slots were run", step.step, plan.slots()));
    std::vector<std::uint64_t> samples;
    for (const auto& [slot, run] : whole->second) samples.insert(samples.end(), run.samples.begin(), run.samples.end());
    if (samples.size() != plan.global_batch)
      report.violate(samples_name,
                     fmt::format("step {} was decided with {} of its {} samples", step.step, samples.size(), plan.global_batch));
    if (!fresh) {
      if (first->second.samples != samples)
        report.violate(samples_name, fmt::format("step {} was decided twice, with other samples", step.step));
      return;
    }
    first->second.samples = samples;
    for (const std::uint64_t sample : samples)
      if (sample >= plan.samples || !seen_[step.step * plan.global_batch / plan.samples].insert(sample).second)
        report.violate(samples_name, fmt::format("sample {} is in step {} and in another one of its epoch", sample, step.step));
  }

 private:
  struct Run {
    ProcessId worker;
    std::vector<std::uint64_t> samples;
  };
  struct Content {
    float loss = 0, norm = 0;
    std::uint64_t tokens = 0;
    std::vector<std::uint64_t> samples;
  };
  std::set<std::pair<ProcessId, std::uint64_t>> got_;
  std::map<std::pair<std::uint64_t, GenerationKey>, std::map<std::uint32_t, Run>> runs_;
  std::map<std::uint64_t, Content> content_;
  std::map<std::uint64_t, std::set<std::uint64_t>> seen_;  // by epoch
};

}  // namespace elrun::sim
