#pragma once
/// \file One membership per generation: all who are told of it are told the same, and no place is given twice.

#include <map>
#include <set>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct OneMembership {
  static constexpr std::string_view name = "one-membership";
  void on(const WorldTaken& taken, Report& report) {
    const Told& t = taken.told;
    const auto [at, first] = seen_.try_emplace(key_of(t.generation), Seen{t, {}, {}});
    Seen& seen = at->second;
    if (!first && (seen.told.nodes != t.nodes || seen.told.world_size != t.world_size || seen.told.roster != t.roster ||
                   seen.told.master_address != t.master_address || seen.told.master_port != t.master_port || seen.told.key != t.key))
      report.violate(
          name,
          fmt::format(
              "{} was told another generation {} than the first who heard of it: {} nodes, {} workers, master {}:{}, roster {:x} against {} nodes, {} workers, master {}:{}, roster {:x}",
              taken.who.node.value(), to_string(t.generation), t.nodes, t.world_size, t.master_address, t.master_port, t.roster,
              seen.told.nodes, seen.told.world_size, seen.told.master_address, seen.told.master_port, seen.told.roster));
    if (t.master_address.empty() || t.master_port == 0)
      report.violate(name,
                     fmt::format("{} was told generation {} without a master's address", taken.who.node.value(), to_string(t.generation)));
    if (t.group_rank >= t.nodes || t.base_rank + taken.workers > t.world_size)
      report.violate(name, fmt::format("{} has place {} of {} and ranks from {} of {} in generation {}", taken.who.node.value(),
                                       t.group_rank, t.nodes, t.base_rank, t.world_size, to_string(t.generation)));
    const auto [place, free] = seen.places.try_emplace(t.group_rank, taken.who);
    if (!free && place->second != taken.who)
      report.violate(name, fmt::format("{} and {} have the same place {} in generation {}", place->second.node.value(),
                                       taken.who.node.value(), t.group_rank, to_string(t.generation)));
    for (std::uint32_t rank = t.base_rank; rank < t.base_rank + taken.workers; ++rank) {
      const auto [owner, fresh] = seen.ranks.try_emplace(rank, taken.who);
      if (!fresh && owner->second != taken.who)
        report.violate(name, fmt::format("{} and {} both have rank {} in generation {}", owner->second.node.value(), taken.who.node.value(),
                                         rank, to_string(t.generation)));
    }
  }

 private:
  struct Seen {
    Told told;
    std::map<std::uint32_t, Incarnation> places, ranks;
  };
  std::map<GenerationKey, Seen> seen_;
};

}  // namespace elrun::sim
