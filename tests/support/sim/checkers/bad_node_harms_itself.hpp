#pragma once
/// \file A node whose program cannot start ends no job whose other nodes satisfy the minimum: they go on to its end. Where nodes start their workers
/// before they have a place, it does not even end a generation of the others, but for the first one, which begins before anybody knows of the program.

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct BadNodeHarmsItself {
  static constexpr std::string_view name = "bad-node-harms-itself";
  /// Set by the plan: nothing else goes wrong.
  bool only_that = false;
  bool nodes_prepare = false;

  void on(const GenerationRevoked& revoked, Report& report) {
    if (only_that && nodes_prepare && revoked.generation.number > 1 && !revoked.why.starts_with("the world grows"))
      report.violate(name, fmt::format("generation {} ended, although nothing happened but on the bad node: {}",
                                       to_string(revoked.generation), revoked.why));
  }
  void on(const AgentFinished& finished, Report& report) {
    if (only_that && finished.exit_code != 0)
      report.violate(name, fmt::format("agent {} ended with {}: {}", finished.agent.value(), finished.exit_code, finished.why));
  }
};

}  // namespace elrun::sim
