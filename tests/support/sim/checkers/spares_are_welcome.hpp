#pragma once
/// \file Over-subscription is never an error: a node that fits is refused only when another process has its name, and a
/// node that hears of the job's success ends with 0, whether it ever had a place or not.

#include <map>
#include <set>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct SparesAreWelcome {
  static constexpr std::string_view name = "spares-are-welcome";
  void on(const NameTakenOver& taken, Report&) { taken_over_.insert(taken.node); }
  void on(const AgentReceived& heard, Report& report) {
    if (heard.what == AgentReceived::What::verdict) verdict_.emplace(heard.agent, heard.exit_code);
    if (heard.what == AgentReceived::What::asked_to_leave) asked_.insert(heard.agent);
    if (heard.what != AgentReceived::What::refused) return;
    if (!taken_over_.contains(heard.who.node)) report.violate(name, fmt::format("{} was refused: {}", heard.who.node.value(), heard.why));
  }
  void on(const AgentFinished& finished, Report& report) {
    const auto verdict = verdict_.find(finished.agent);
    if (verdict != verdict_.end() && verdict->second == 0 && finished.exit_code != 0 && !asked_.contains(finished.agent))
      report.violate(name, fmt::format("{} ended with {} although it heard that the job is done{}", finished.who.node.value(),
                                       finished.exit_code, finished.member_ever ? "" : "; it was a spare"));
  }

 private:
  std::set<NodeId> taken_over_;
  std::map<ProcessId, std::int32_t> verdict_;
  std::set<ProcessId> asked_;
};

}  // namespace elrun::sim
