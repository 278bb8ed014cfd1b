#pragma once
/// \file Nothing sent for a generation is accepted by anyone who has acknowledged a later one: here the store.

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct StaleIsRefused {
  static constexpr std::string_view name = "stale-is-refused";
  void on(const StoreServed& served, Report& report) {
    if (!served.reply.ok) return;
    if (!served.serving || served.request.generation != *served.serving)
      report.violate(name,
                     fmt::format("the store of coordinator {} did a call of generation {} while it serves {}", served.coordinator.value(),
                                 to_string(served.request.generation), served.serving ? to_string(*served.serving) : "none"));
  }
};

}  // namespace elrun::sim
