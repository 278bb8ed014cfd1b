#pragma once
/// \file A world has as many nodes as the options say: never fewer than the minimum, never more than the maximum, and none
/// of them twice.

#include <set>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct WorldFits {
  static constexpr std::string_view name = "world-fits";
  std::uint32_t nodes_min = 1, nodes_max = 1;  ///< Set by the plan

  void on(const GenerationBegan& began, Report& report) const {
    if (began.nodes.size() < nodes_min || began.nodes.size() > nodes_max)
      report.violate(name, fmt::format("generation {} began with {} nodes; {} to {} are allowed", to_string(began.generation),
                                       began.nodes.size(), nodes_min, nodes_max));
    std::set<NodeId> nodes;
    for (const NodeId& node : began.nodes)
      if (!nodes.insert(node).second)
        report.violate(name, fmt::format("{} is twice in generation {}", node.value(), to_string(began.generation)));
  }
};

}  // namespace elrun::sim
