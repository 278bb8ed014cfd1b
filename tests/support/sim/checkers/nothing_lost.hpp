#pragma once
/// \file No decided step is done again while those who hold its state are there: a member of the generation that has all of it, or
/// members that have all of its parts together. That goes for each step, not only for the newest of which a member knows.
///
/// Who holds which part is reckoned here anew. A worker has the parts of the place in which it got its last step, or, where it went through other
/// generations since and got no step in them, those of one of these: only what is in all of them is counted. One that met another state, from which all
/// may have gone on since, is not counted: a state arrives in the memory of the older one, and both are lost when its sender is lost meanwhile. Where sums
/// follow the world (`Reduce::fast`), parts of as many steps need not be of one state: there, only what is whole is looked at.

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <elrun/plan.hpp>

#include "tests/support/sim/checkers/held_parts.hpp"
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
    if (there.size() < place.world) return;  // nobody learns what the others bring before all are there
    const std::uint64_t wanted = newest_that_is_there(there);
    wanted_[key_of(place.generation)] = wanted;
    // With sums that follow the world, states of as many steps differ from generation to generation, and all go on from the newest one.
    std::uint64_t newest = 0;
    if (plan.reduce == Reduce::fast)
      for (const PlaceTaken& one : there)
        if (const Member& held = members_[one.worker]; held.steps == wanted) newest = std::max(newest, held.ready.generation.number);
    for (const PlaceTaken& one : there) {
      Member& held = members_[one.worker];
      const bool has_it = held.steps == wanted && held.ready.generation.number >= newest;
      held.overtaken = held.overtaken || (held.steps && !has_it && !voted_for(held, there, wanted));
      if (held.places_since > 0) keep_common(held.held, parts_of(one, there));
    }
  }
  void on(const StepApplied& applied, Report& report) {
    Member& member = members_[applied.worker];
    if (member.steps && applied.steps != *member.steps + 1)
      report.violate(name, fmt::format("worker#{} applied step {} to the state of {} steps", applied.worker.value(), applied.steps - 1,
                                       *member.steps));
    member.steps = applied.steps;
    member.knows_votes = true;
    most_ = std::max(most_, applied.steps);
    if (member.ready.generation == applied.generation) voted_in_[applied.steps].insert(key_of(applied.generation));
  }
  void on(const StepHandedOut& step, Report& report) {
    const auto& there = generations_[key_of(step.generation)];
    // What members decided in this generation counts as well as what they brought into it. Who is in a later one may have decided there what it has now: a member that was
    // frozen meanwhile cannot know of that, and decides nothing here any more.
    std::vector<PlaceTaken> here;
    std::ranges::copy_if(there, std::back_inserter(here),
                         [&](const PlaceTaken& place) { return members_[place.worker].place.generation == step.generation; });
    const auto brought = wanted_.find(key_of(step.generation));
    const std::uint64_t wanted = std::max(brought == wanted_.end() ? 0 : brought->second, newest_that_is_there(here));
    if (step.step < wanted)
      report.violate(name, fmt::format("worker#{} gets step {} in generation {}, whose members hold the state of {} decided steps",
                                       step.worker.value(), step.step, to_string(step.generation), wanted));
    Member& member = members_[step.worker];
    if (member.steps != step.step) member.knows_votes = false;
    member.steps = step.step;
    member.places_since = 0;
    member.overtaken = false;
    member.ready = member.place;
    member.held = parts_of(member.place, there);
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
    bool knows_votes = false;        // it applied the last of its steps itself
    bool overtaken = false;          // it met another state, which may have begun to arrive in the place of its own
    Held held;
  };

  static void keep_common(Held& held, const Held& other) {
    for (std::size_t unit = 0; unit < held.size(); ++unit)
      std::erase_if(held[unit], [&](std::uint64_t g) { return !other[unit].contains(g); });
  }
  /// What a member holds once it has its shard of a world.
  [[nodiscard]] Held parts_of(const PlaceTaken& mine, const std::vector<PlaceTaken>& there) const {
    const Sharding sharding = plan.placement.optimizer;
    if (sharding == Sharding::replicated) return granules_of(1, {0});
    if (sharding == Sharding::mirrored) return mirrored_parts_of(mine, there);
    std::uint64_t parts = 0, part = 0;
    for (const PlaceTaken& place : there) {
      if (sharding == Sharding::sharded_in_node && place.node != mine.node) continue;
      ++parts;
      part += place.rank < mine.rank;
    }
    return granules_of(parts, {part});
  }
  /// The steps of the newest state that members hold together; 0: none does.
  [[nodiscard]] std::uint64_t newest_that_is_there(const std::vector<PlaceTaken>& there) {
    std::set<std::uint64_t> steps;
    for (const PlaceTaken& place : there)
      if (const auto& has = members_[place.worker].steps) steps.insert(*has);
    for (auto at = steps.rbegin(); at != steps.rend(); ++at)
      if (all_is_there(there, *at)) return *at;
    return 0;
  }
  /// Who decided a step had the votes of all members: each of them holds what it takes to apply it, once somebody tells to what the votes came.
  [[nodiscard]] bool voted_for(const Member& member, const std::vector<PlaceTaken>& there, std::uint64_t steps) {
    const bool is_told = std::ranges::any_of(there, [&](const PlaceTaken& place) {
      const Member& other = members_[place.worker];
      return other.steps == steps && other.knows_votes;
    });
    return is_told && member.steps && *member.steps + 1 == steps && voted_in_[steps].contains(key_of(member.ready.generation)) &&
           member.places_since == 1;
  }
  [[nodiscard]] bool all_is_there(const std::vector<PlaceTaken>& there, std::uint64_t steps) {
    Held held;
    for (const PlaceTaken& place : there) {
      const Member& member = members_[place.worker];
      if (member.overtaken || (member.steps != steps && !voted_for(member, there, steps))) continue;
      if (plan.placement.optimizer == Sharding::replicated) return true;
      if (plan.reduce == Reduce::fast) continue;
      for (std::size_t unit = 0; unit < held.size(); ++unit) held[unit].insert(member.held[unit].begin(), member.held[unit].end());
    }
    return is_all(held);
  }

  std::uint64_t most_ = 0;  // steps that anybody ever had
  std::map<ProcessId, Member> members_;
  std::map<std::uint64_t, std::set<GenerationKey>> voted_in_;  // by steps: where the last of them was decided
  std::map<GenerationKey, std::vector<PlaceTaken>> generations_;
  std::map<GenerationKey, std::uint64_t> wanted_;  // from which state each goes on, at least
};

}  // namespace elrun::sim
