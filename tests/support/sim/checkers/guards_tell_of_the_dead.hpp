#pragma once
/// \file A guard's word is believed of an agent that has ended, and of no other: not of the next agent of its node, however late the word comes, and
/// not of one that an outsider names.

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct GuardsTellOfTheDead {
  static constexpr std::string_view name = "guards-tell-of-the-dead";
  void on(const LostByItsGuard& lost, Report& report) {
    if (lost.alive)
      report.violate(name, fmt::format("node {} was given up as if its agent had ended, and it lives", lost.who.node.value()));
  }
};

}  // namespace elrun::sim
