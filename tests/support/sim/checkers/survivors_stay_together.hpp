#pragma once
/// \file When the node that coordinated is lost, the generation after has all others of the one before: nobody is thrown out
/// for being a moment later than the first.

#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct SurvivorsStayTogether {
  static constexpr std::string_view name = "survivors-stay-together";
  /// Set by the plan: agents end only with the coordinator that they host, and who lost its line has it again within seconds.
  bool others_are_back_at_once = false;

  void on(const WorldTaken& taken, Report&) {
    if (key_of(taken.told.generation) > newest_) living_.clear(), newest_ = key_of(taken.told.generation);
    if (key_of(taken.told.generation) == newest_) living_[taken.agent] = taken.who;
  }
  void on(const AgentCrashed& crashed, Report&) {
    living_.erase(crashed.agent);
    ++crashed_;
  }
  void on(const AgentFinished& finished, Report&) { living_.erase(finished.agent); }
  void on(const GenerationBegan& began, Report& report) {
    // Who was still ending its workers when the next coordinator went as well has no seat to come back with.
    // Where no coordinator was lost, a member without workers may be left out: it starts them beside the others.
    if (std::exchange(crashed_, 0) != 1 || !others_are_back_at_once || began.adopted) return;
    // Those who came first had not been told of any generation before. Only a record that coordinators share knows better.
    if (began.generation.number <= newest_.first) return;
    const std::set<Incarnation> members{began.members.begin(), began.members.end()};
    for (const auto& [agent, who] : living_)
      if (!members.contains(who))
        report.violate(name, fmt::format("{} lives and was in the generation before, but is not in {}", who.node.value(),
                                         to_string(began.generation)));
  }

 private:
  GenerationKey newest_{};
  std::map<ProcessId, Incarnation> living_;
  int crashed_ = 0;  // since the newest began
};

}  // namespace elrun::sim
