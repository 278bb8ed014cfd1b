#pragma once
/// \file A coordinator gives one verdict, whoever has a stream to it then hears it, and whoever ends by it ends with its code (or with 0: its workers had decided
/// that the job is done; or with that of the signal that asked it to leave, where a worker was still at its last work).

#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct OneVerdict {
  static constexpr std::string_view name = "one-verdict";
  void on(const VerdictGiven& given, Report& report) {
    expected_.insert(given.connected.begin(), given.connected.end());
    const auto [at, first] = given_.try_emplace(given.coordinator, given.exit_code);
    if (!first && at->second != given.exit_code)
      report.violate(name, fmt::format("coordinator {} gave verdict {} after {}", given.coordinator.value(), given.exit_code, at->second));
  }
  void on(const AgentReceived& heard, Report&) {
    if (heard.what == AgentReceived::What::verdict) heard_.emplace(heard.agent, heard.exit_code);
    if (heard.what == AgentReceived::What::asked_to_leave) asked_.insert(heard.agent);
  }
  void on(const AgentFinished& finished, Report& report) {
    const auto at = heard_.find(finished.agent);
    if (at != heard_.end()) told_.insert(finished.who.node);
    // Where a process that came after it under its name was told, it was replaced: nobody tells it anything any more.
    if (at == heard_.end() && finished.exit_code == coordinator_lost && expected_.contains(finished.agent) &&
        !told_.contains(finished.who.node))
      report.violate(name, fmt::format("{} had a stream to the coordinator that gave the verdict, and gave up without ever hearing it",
                                       finished.who.node.value()));
    if (!finished.by_verdict) return;
    if (at != heard_.end() && at->second == 0 && finished.exit_code == by_sigterm && asked_.contains(finished.agent)) return;
    if (at == heard_.end() || (finished.exit_code != at->second && finished.exit_code != 0))
      report.violate(name, fmt::format("{} ended by a verdict with {}, but {}", finished.who.node.value(), finished.exit_code,
                                       at == heard_.end() ? "it heard none" : fmt::format("it heard {}", at->second)));
  }

 private:
  static constexpr std::int32_t coordinator_lost = 171, by_sigterm = 143;
  std::map<ProcessId, std::int32_t> given_, heard_;
  std::set<ProcessId> expected_, asked_;
  std::set<NodeId> told_;  // of agents that have ended
};

}  // namespace elrun::sim
