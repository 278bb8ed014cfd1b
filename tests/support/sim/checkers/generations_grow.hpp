#pragma once
/// \file Generations only grow: for every agent, and for every coordinator, above what was on record when it started. And a
/// process that was replaced under its name never has a place again.

#include <map>
#include <set>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct GenerationsGrow {
  static constexpr std::string_view name = "generations-grow";
  void on(const WorldTaken& taken, Report& report) {
    std::uint64_t& newest = taken_[taken.who];
    if (taken.told.generation.number <= newest)
      report.violate(
          name, fmt::format("{} took generation {} after number {}", taken.who.node.value(), to_string(taken.told.generation), newest));
    newest = std::max(newest, taken.told.generation.number);
  }
  void on(const CoordinatorStarted& started, Report&) { begun_[started.coordinator] = started.floor; }
  void on(const GenerationBegan& began, Report& report) {
    std::uint64_t& newest = begun_[began.coordinator];
    if (began.adopted ? began.generation.number < newest : began.generation.number <= newest)
      report.violate(name, fmt::format("coordinator {} began generation {} after number {}", began.coordinator.value(),
                                       to_string(began.generation), newest));
    newest = std::max(newest, began.generation.number);
    for (const Incarnation& who : began.members) {
      std::uint64_t& heard = offered_[{began.coordinator, who}];
      if (began.adopted ? began.generation.number < heard : began.generation.number <= heard)
        report.violate(
            name, fmt::format("{} has a place in generation {} after number {}", who.node.value(), to_string(began.generation), heard));
      heard = began.generation.number;
      const auto taken = taken_.find(who);
      Incarnation& last = last_[{began.coordinator, who.node}];
      if (last != who && last.node == who.node) replaced_.insert({began.coordinator, last});
      last = who;
      if (replaced_.contains({began.coordinator, who}))
        report.violate(name, fmt::format("{} has a place in generation {} again although another process had its name meanwhile",
                                         who.node.value(), to_string(began.generation)));
      if (began.named && !began.adopted && taken != taken_.end() && began.generation.number <= taken->second)
        report.violate(name, fmt::format("generation {} began with {}, which was in number {} already", to_string(began.generation),
                                         who.node.value(), taken->second));
    }
  }

 private:
  std::map<Incarnation, std::uint64_t> taken_;
  std::map<ProcessId, std::uint64_t> begun_;
  std::map<std::pair<ProcessId, Incarnation>, std::uint64_t> offered_;
  std::map<std::pair<ProcessId, NodeId>, Incarnation> last_;
  std::set<std::pair<ProcessId, Incarnation>> replaced_;
};

}  // namespace elrun::sim
