#pragma once
/// \file A fault in one node never ends a process on another: an agent signals a worker that runs only when the coordinator
/// revoked the generation or gave a verdict, when it was asked to leave itself, or when its grace without one is over; and
/// a coordinator revokes a generation only when something happened to one of its members, or to grow.

#include <map>
#include <set>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct FaultsStayLocal {
  static constexpr std::string_view name = "faults-stay-local";
  /// Set by the plan: nothing happens, or only what no complete generation ends of: the coordinator is away for a short
  /// time, or replaced; a stream breaks and is opened again at once.
  bool harmless = false;

  void on(const AgentReceived& heard, Report& report) {
    if (heard.what != AgentReceived::What::revoke) return void(excused_.insert(heard.agent));
    revoked_[heard.agent].insert(key_of(heard.generation));
    if (heard.why.starts_with("the world grows")) grows_.insert(key_of(heard.generation));
    if (harmless && !members_end_ && complete_.contains(key_of(heard.generation)) && !grows_.contains(key_of(heard.generation)))
      report.violate(name, fmt::format("generation {} was ended although nothing happened to its members: {}", to_string(heard.generation),
                                       heard.why));
  }
  void on(const WorldTaken& taken, Report&) {
    auto& there = there_[key_of(taken.told.generation)];
    there.insert(taken.who);
    if (there.size() == taken.told.nodes) complete_.insert(key_of(taken.told.generation));
  }
  void on(const WorkerFailedByItself&, Report&) { members_end_ = true; }
  void on(const AgentFinished&, Report&) { members_end_ = true; }  // a member whose job is over may go
  void on(const WorkerSignalled& signalled, Report& report) {
    if (excused_.contains(signalled.agent)) return;
    const auto at = revoked_.find(signalled.agent);
    if (at == revoked_.end() || !at->second.contains(key_of(signalled.generation)))
      report.violate(name,
                     fmt::format("agent {} sent signal {} to worker {} of generation {}, which nobody revoked", signalled.agent.value(),
                                 signalled.number, signalled.worker.value(), to_string(signalled.generation)));
  }
  void on(const GenerationRevoked& revoked, Report&) {
    if (revoked.why.starts_with("the world grows")) grows_.insert(key_of(revoked.generation));
  }

 private:
  std::map<ProcessId, std::set<GenerationKey>> revoked_;
  std::map<GenerationKey, std::set<Incarnation>> there_;
  std::set<GenerationKey> complete_, grows_;
  std::set<ProcessId> excused_;
  bool members_end_ = false;
};

}  // namespace elrun::sim
