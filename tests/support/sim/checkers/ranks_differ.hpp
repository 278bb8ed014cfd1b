#pragma once
/// \file No two live processes have one rank of one generation, and none has two.

#include <map>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct RanksDiffer {
  static constexpr std::string_view name = "ranks-differ";
  void on(const WorkerStarted& started, Report& report) {
    const auto place = std::pair{key_of(started.generation), started.rank};
    const auto [at, fresh] = live_.try_emplace(place, started.worker);
    if (!fresh)
      report.violate(name, fmt::format("workers {} and {} both live as rank {} of generation {}", at->second.value(),
                                       started.worker.value(), started.rank, to_string(started.generation)));
    if (started.rank >= started.world)
      report.violate(name, fmt::format("worker {} is rank {} of {}", started.worker.value(), started.rank, started.world));
    places_.emplace(started.worker, place);
  }
  void on(const WorkerGone& gone, Report&) {
    const auto place = places_.find(gone.worker);
    if (place == places_.end()) return;
    live_.erase(place->second);
    places_.erase(place);
  }

 private:
  std::map<std::pair<GenerationKey, std::uint32_t>, ProcessId> live_;
  std::map<ProcessId, std::pair<GenerationKey, std::uint32_t>> places_;
};

}  // namespace elrun::sim
