#pragma once
/// \file All go on from the newest in-memory checkpoint of which members hold all parts, or from a newer state. For jobs without a directory of checkpoints, where nothing else is newer.
///
/// Who holds which part is reckoned here anew. A member has its part when it gets the step before which the checkpoint was made, and all members of that generation have theirs
/// once that step is decided.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/support/sim/checkers/held_parts.hpp"
#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct CheckpointsHold {
  static constexpr std::string_view name = "in-memory";
  std::uint64_t every = 0;  ///< Steps between them; 0: there is nothing to check.

  void on(const PlaceTaken& place, Report&) {
    if (every == 0) return;
    Member& member = members_[place.worker];
    member.number = place.generation.number;
    auto& there = generations_[key_of(place.generation)];
    there.push_back(place);
    if (there.size() < place.world) return;
    const auto whole = newest_whole(there);
    // One that not all have is kept or given up; that follows from what else they hold.
    const bool is_kept = whole && std::ranges::all_of(there, [&](const PlaceTaken& one) {
                           const auto& parts = members_[one.worker].parts;
                           return parts.empty() || parts.contains(*whole);
                         });
    for (const PlaceTaken& one : there)
      std::erase_if(members_[one.worker].parts, [&](const auto& part) { return !is_kept || part.first != *whole; });
    if (whole) wanted_[key_of(place.generation)] = whole->first;
  }
  void on(const StepHandedOut& step, Report& report) {
    if (every == 0) return;
    const GenerationKey here = key_of(step.generation);
    const auto& there = generations_[here];
    if (const auto wanted = wanted_.find(here); wanted != wanted_.end() && step.step < wanted->second)
      report.violate(
          name, fmt::format("worker#{} gets step {} in generation {}, whose members hold all parts of the in-memory checkpoint of step {}",
                            step.worker.value(), step.step, to_string(step.generation), wanted->second));
    if (there.size() < 2 || step.step == 0) return;
    const auto [made_at, is_first] = made_at_.try_emplace(here, step.step);
    if (!is_first && step.step % every == 0) made_at->second = step.step;
    if (made_at->second != step.step) return;
    for (const PlaceTaken& place : there)
      if (place.worker == step.worker) members_[step.worker].parts[{step.step, here}] = mirrored_parts_of(place, there);
  }
  void on(const StepApplied& applied, Report&) {
    if (every == 0) return;
    const std::pair made{applied.steps - 1, key_of(applied.generation)};
    const auto at = made_at_.find(made.second);
    if (at == made_at_.end() || at->second != made.first) return;
    const auto& there = generations_[made.second];
    for (const PlaceTaken& place : there)
      if (Member& member = members_[place.worker]; member.number == applied.generation.number) {
        member.parts[made] = mirrored_parts_of(place, there);
        std::erase_if(member.parts, [&](const auto& part) { return part.first != made; });
      }
  }

 private:
  using Made = std::pair<std::uint64_t, GenerationKey>;  // after so many steps, in that generation
  struct Member {
    std::uint64_t number = 0;  // of its newest generation
    std::map<Made, Held> parts;
  };

  [[nodiscard]] std::optional<Made> newest_whole(const std::vector<PlaceTaken>& there) {
    std::map<Made, Held> all;
    for (const PlaceTaken& place : there)
      for (const auto& [made, held] : members_[place.worker].parts)
        for (std::size_t unit = 0; unit < held.size(); ++unit) all[made][unit].insert(held[unit].begin(), held[unit].end());
    for (auto one = all.rbegin(); one != all.rend(); ++one)
      if (is_all(one->second)) return one->first;
    return std::nullopt;
  }

  std::map<ProcessId, Member> members_;
  std::map<GenerationKey, std::vector<PlaceTaken>> generations_;
  std::map<GenerationKey, std::uint64_t> wanted_;   // from which step each goes on, at least
  std::map<GenerationKey, std::uint64_t> made_at_;  // the newest one of that generation
};

}  // namespace elrun::sim
