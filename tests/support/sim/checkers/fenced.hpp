#pragma once
/// \file Generations fence: nobody acts for a generation whose end it has acknowledged, no step of one is decided by a
/// member of a later one, and a generation begins only when every member that it shares with the last one has no worker left.
/// (A coordinator that was replaced while it was stopped knows nothing of its members any more; nobody hears what it says.)

#include <map>
#include <set>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct Fenced {
  static constexpr std::string_view name = "fenced";
  void on(const Acknowledged& said, Report& report) {
    std::uint64_t& acknowledged = acknowledged_[said.who];
    acknowledged = std::max(acknowledged, said.generation.number);
    for (const auto& [worker, of] : live_)
      if (of.who == said.who && of.generation.number <= said.generation.number)
        report.violate(name, fmt::format("{} acknowledged the end of generation {} while its worker {} of generation {} lives",
                                         said.who.node.value(), to_string(said.generation), worker.value(), to_string(of.generation)));
  }
  void on(const WorkerStarted& started, Report& report) {
    live_.emplace(started.worker, Of{started.who, started.generation});
    if (const auto at = acknowledged_.find(started.who); at != acknowledged_.end() && started.generation.number <= at->second)
      report.violate(name, fmt::format("{} starts worker {} of generation {} after acknowledging number {}", started.who.node.value(),
                                       started.worker.value(), to_string(started.generation), at->second));
  }
  void on(const WorkerGone& gone, Report&) { live_.erase(gone.worker); }
  void on(const GenerationBegan& began, Report& report) {
    for (const Incarnation& who : began.members) {
      // One that begins later has a smaller number when nobody who lives was ever told of the larger one.
      if (began.named) newest_[who] = began.adopted ? std::max(newest_[who], began.generation.number) : began.generation.number;
      if (began.adopted) continue;
      for (const auto& [worker, of] : live_)
        if (of.who == who && of.generation != began.generation && (began.named || of.generation.lineage == began.lineage))
          report.violate(name, fmt::format("generation {} began while worker {} of its member {} still lives for generation {}",
                                           to_string(began.generation), worker.value(), who.node.value(), to_string(of.generation)));
    }
  }
  void on(const StepWasDecided& decided, Report& report) {
    if (const auto at = newest_.find(decided.who); at != newest_.end() && decided.generation.number < at->second)
      report.violate(name, fmt::format("step {} of generation {} was decided on {} after generation number {} began with it", decided.step,
                                       to_string(decided.generation), decided.who.node.value(), at->second));
  }

 private:
  struct Of {
    Incarnation who;
    Generation generation;
  };
  std::map<ProcessId, Of> live_;
  std::map<Incarnation, std::uint64_t> acknowledged_, newest_;
};

}  // namespace elrun::sim
