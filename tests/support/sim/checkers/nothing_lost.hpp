#pragma once
/// \file No decided step is done again while those who hold its state are there: a member of the generation that has all of it, or
/// members that have all of its parts together.
///
/// Who holds which part is reckoned here anew, from the place in which a worker got its last step. One that went through another
/// generation since, and got no step in it, may hold another part, and is not counted. Nor is one that met a newer state since: a state
/// arrives in the memory of the older one, and both are lost when its sender is lost meanwhile. Where sums follow the world (`Reduce::fast`),
/// parts of as many steps need not be of one state: there, only what is whole is looked at.

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <elrun/plan.hpp>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct NothingLost {
  static constexpr std::string_view name = "nothing-lost";
  Plan plan;

  void on(const PlaceTaken& place, Report&) {
    Member& member = members_[place.worker];
    member.places_since += 1;
    member.place = place;
    auto& there = generations_[key_of(place.generation)];
    there.push_back(place);
    const std::uint64_t newest = newest_of(there);
    for (const PlaceTaken& one : there) {
      Member& behind = members_[one.worker];
      behind.overtaken = behind.overtaken || (behind.steps && *behind.steps < newest && !voted_for(behind, newest));
    }
  }
  void on(const StepApplied& applied, Report& report) {
    Member& member = members_[applied.worker];
    if (member.steps && applied.steps != *member.steps + 1)
      report.violate(name, fmt::format("worker#{} applied step {} to the state of {} steps", applied.worker.value(), applied.steps - 1,
                                       *member.steps));
    member.steps = applied.steps;
    most_ = std::max(most_, applied.steps);
    if (member.ready.generation == applied.generation) voted_in_[applied.steps].insert(key_of(applied.generation));
  }
  void on(const StepHandedOut& step, Report& report) {
    const auto& there = generations_[key_of(step.generation)];
    const std::uint64_t newest = newest_of(there);
    if (step.step < newest && all_is_there(there, newest))
      report.violate(name, fmt::format("worker#{} gets step {} in generation {}, whose members hold the state of {} decided steps",
                                       step.worker.value(), step.step, to_string(step.generation), newest));
    Member& member = members_[step.worker];
    member.steps = step.step;
    member.places_since = 0;
    member.overtaken = false;
    member.ready = member.place;
    member.parts = 1, member.held = {0};
    if (plan.placement.optimizer == Spread::replicated) return;
    if (plan.placement.optimizer == Spread::mirrored) return hold_mirrored(member, there);
    member.parts = 0, member.held = {0};
    for (const PlaceTaken& place : there) {
      if (plan.placement.optimizer == Spread::sharded_in_node && place.node != member.place.node) continue;
      ++member.parts;
      member.held[0] += place.rank < member.place.rank;
    }
  }
  void on(const JobSaidOver& over, Report& report) {
    if (most_ != plan.steps)
      report.violate(name, fmt::format("worker#{} said that the job is over, and nobody ever had applied more than {} of {} steps",
                                       over.worker.value(), most_, plan.steps));
  }

 private:
  struct Member {
    std::optional<std::uint64_t> steps;  // in its state
    PlaceTaken place, ready;
    std::uint32_t places_since = 0;  // it got a step
    bool overtaken = false;          // it met a newer state, which may have begun to arrive in the place of its own
    std::uint32_t parts = 1;
    std::vector<std::uint32_t> held{0};  // of them
  };
  static constexpr std::array<std::uint64_t, 2> granules{3, 1};  // of the model's units

  /// Two parts of as many as there are members, one node's members after the other's, from the first part again behind the last; where one of several
  /// nodes has more than half of the members, its members have one copy and all others another one.
  static void hold_mirrored(Member& member, std::vector<PlaceTaken> there) {
    std::ranges::sort(there, {}, &PlaceTaken::rank);
    const auto on_node_of = [&](const PlaceTaken& place) { return std::ranges::count(there, place.node, &PlaceTaken::node); };
    const auto first_on_node = [&](const PlaceTaken& place) {
      return std::ranges::find(there, place.node, &PlaceTaken::node) - there.begin();
    };
    const auto all = std::ssize(there);
    const auto is_on_larger = [&](const PlaceTaken& place) { return 2 * on_node_of(place) > all; };
    const bool is_uneven = std::ranges::any_of(there, is_on_larger) && !std::ranges::all_of(there, is_on_larger);
    std::uint32_t before = 0, others = 0;
    for (const PlaceTaken& place : there) {
      if (is_uneven && is_on_larger(place) != is_on_larger(member.place)) continue;
      ++others;
      before += std::pair{first_on_node(place), place.rank} < std::pair{first_on_node(member.place), member.place.rank};
    }
    member.parts = others;
    if (is_uneven) member.held = {before};
    else member.held = {2 * before % others, (2 * before + 1) % others};
  }
  [[nodiscard]] std::uint64_t newest_of(const std::vector<PlaceTaken>& there) {
    std::uint64_t newest = 0;
    for (const PlaceTaken& place : there) newest = std::max(newest, members_[place.worker].steps.value_or(0));
    return newest;
  }
  /// Who decided a step had the votes of all members: each of them holds what it takes to apply it.
  [[nodiscard]] bool voted_for(const Member& member, std::uint64_t newest) {
    return member.steps && *member.steps + 1 == newest && voted_in_[newest].contains(key_of(member.ready.generation)) &&
           member.places_since == 1;
  }
  [[nodiscard]] bool all_is_there(const std::vector<PlaceTaken>& there, std::uint64_t newest) {
    std::array<std::set<std::uint64_t>, granules.size()> held;
    for (const PlaceTaken& place : there) {
      const Member& member = members_[place.worker];
      if (member.overtaken || (member.steps != newest && !voted_for(member, newest))) continue;
      if (plan.placement.optimizer == Spread::replicated) return true;
      if (member.places_since > 1 || plan.reduce == Reduce::fast) continue;
      for (std::size_t unit = 0; unit < granules.size(); ++unit) {
        const std::uint64_t each = (granules[unit] + member.parts - 1) / member.parts;
        for (const std::uint64_t part : member.held)
          for (std::uint64_t g = part * each; g < std::min<std::uint64_t>(granules[unit], (part + 1) * each); ++g) held[unit].insert(g);
      }
    }
    for (std::size_t unit = 0; unit < granules.size(); ++unit)
      if (held[unit].size() < granules[unit]) return false;
    return true;
  }

  std::uint64_t most_ = 0;  // steps that anybody ever had
  std::map<ProcessId, Member> members_;
  std::map<std::uint64_t, std::set<GenerationKey>> voted_in_;  // by steps: where the last of them was decided
  std::map<GenerationKey, std::vector<PlaceTaken>> generations_;
};

}  // namespace elrun::sim
