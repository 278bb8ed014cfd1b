#pragma once
/// \file All checkers, each fed with every observation that it has a rule for.

#include <tuple>

#include "tests/support/sim/checkers/bad_node_harms_itself.hpp"
#include "tests/support/sim/checkers/checkpoints_hold.hpp"
#include "tests/support/sim/checkers/cuts_cost_one.hpp"
#include "tests/support/sim/checkers/decided_once.hpp"
#include "tests/support/sim/checkers/faults_stay_local.hpp"
#include "tests/support/sim/checkers/fenced.hpp"
#include "tests/support/sim/checkers/generations_grow.hpp"
#include "tests/support/sim/checkers/guards_tell_of_the_dead.hpp"
#include "tests/support/sim/checkers/nothing_lost.hpp"
#include "tests/support/sim/checkers/one_loss_is_free.hpp"
#include "tests/support/sim/checkers/one_membership.hpp"
#include "tests/support/sim/checkers/one_verdict.hpp"
#include "tests/support/sim/checkers/ranks_differ.hpp"
#include "tests/support/sim/checkers/same_state.hpp"
#include "tests/support/sim/checkers/saves_hold.hpp"
#include "tests/support/sim/checkers/spares_are_welcome.hpp"
#include "tests/support/sim/checkers/stale_is_refused.hpp"
#include "tests/support/sim/checkers/store_is_linear.hpp"
#include "tests/support/sim/checkers/survivors_stay_together.hpp"
#include "tests/support/sim/checkers/world_fits.hpp"

namespace elrun::sim {

class Checkers {
 public:
  template <class Observation>
  void see(const Observation& observation, Instant now) {
    report.now = now;
    std::apply(
        [&](auto&... checker) {
          const auto tell = [&](auto& one) {
            if constexpr (requires { one.on(observation, report); }) one.on(observation, report);
          };
          (tell(checker), ...);
        },
        all);
  }
  Report report;
  std::tuple<OneMembership, WorldFits, GenerationsGrow, RanksDiffer, Fenced, StaleIsRefused, FaultsStayLocal, SurvivorsStayTogether,
             SparesAreWelcome, OneVerdict, StoreIsLinear, SameState, DecidedOnce, NothingLost, BadNodeHarmsItself, CutsCostOne,
             GuardsTellOfTheDead, SavesHold, CheckpointsHold, OneLossIsFree>
      all;
};

}  // namespace elrun::sim
