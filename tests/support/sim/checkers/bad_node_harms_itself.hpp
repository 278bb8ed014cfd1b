#pragma once
/// \file A node whose program cannot start ends no job whose other nodes satisfy the minimum: they go on to its end.

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct BadNodeHarmsItself {
  static constexpr std::string_view name = "bad-node-harms-itself";
  /// Set by the plan: nothing else goes wrong.
  bool only_that = false;

  void on(const AgentFinished& finished, Report& report) {
    if (only_that && finished.exit_code != 0)
      report.violate(name, fmt::format("agent {} ended with {}: {}", finished.agent.value(), finished.exit_code, finished.why));
  }
};

}  // namespace elrun::sim
