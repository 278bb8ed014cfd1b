#include "lib/job/gather/phase_rounds.hpp"

#include <string>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

PhaseRounds::PhaseRounds(JobWorld& world, ModelState& state, GradientReducer& reducer, const ShardMap& shards)
    : world_{world},
      state_{state},
      reducer_{reducer},
      shards_{shards},
      comm_thread_{{.round =
                        [this](const Need& said) {
                          return round_.run(
                              world_, said,
                              {.state = state_, .stream = reducer_.is_per_slot() ? &reducer_.stream() : nullptr, .shards = shards_});
                        },
                    .over = [this] { return world_.over(); },
                    .give_up =
                        [this](std::string_view why) {
                          world_.end({Code::generation_over, Remedy::abort_group, std::string{why}});
                        },
                    .limit = [this] { return 2 * world_.timeout(); },  // of two exchanges
                    .stuck = [] { ELRUN_ASSERT(!"a round goes on although its world is over"); }}} {}

void PhaseRounds::plan_world(bool overlap) {
  overlap_ = overlap;
  busiest_ = reducer_.slots_of_busiest();
  round_ = RoundExchange{world_.size(), world_.rank()};
}

void PhaseRounds::begin_slot(const Phase& phase) {
  if (!overlaps()) return;
  comm_thread_.work_alone();
  if (phase.what == Phase::What::slot) comm_thread_.tell([&](PendingRequests& requests) { requests.begin(phase); });
}

bool PhaseRounds::serve(const Phase& phase, std::optional<std::uint32_t> unit) {
  return comm_thread_.until(
      [&](PendingRequests& requests) {
        requests.begin(phase);
        if (unit) requests.want(*unit);
      },
      [&](const PendingRequests& requests) { return (!unit || requests.here(*unit)) && (overlaps() || requests.leaves() == 0); });
}

/// This rank needs nothing more in this phase; others may. False: the world is over.
bool PhaseRounds::leave(const Phase& phase) {
  if (!comm_thread_.until([&](PendingRequests& requests) { requests.begin(phase); },
                          [&](const PendingRequests& requests) { return requests.at(phase); }))
    return false;
  comm_thread_.tell([](PendingRequests& requests) { requests.end(); });
  return true;
}

/// Serves the others until nobody needs anything more. False: the world is over.
bool PhaseRounds::end() {
  return comm_thread_.until([](PendingRequests&) {}, [](const PendingRequests& requests) { return requests.over(); });
}

bool PhaseRounds::end_slot(const Phase& slot) {
  if (!(overlaps() ? leave(slot) : end_phase(slot))) return false;
  ++through_;
  return true;
}

bool PhaseRounds::end_step(std::uint64_t step) {
  while (through_ < busiest_)
    if (world_.over() || !end_slot({Phase::What::slot, step, through_})) return false;
  return end();
}

void PhaseRounds::wait_for_room(const Phase& slot) {
  (void)comm_thread_.until([&](PendingRequests& requests) { requests.begin(slot); },
                           [&](const PendingRequests& requests) { return requests.at(slot) && requests.leaves() <= (overlaps() ? 1 : 0); });
}

void PhaseRounds::hand_off(std::uint32_t unit) {
  comm_thread_.tell([&](PendingRequests& requests) { requests.hand_off(unit); });
}

void PhaseRounds::prefetch(std::uint32_t unit) {
  comm_thread_.tell([&](PendingRequests& requests) { requests.prefetch(unit); });
}

void PhaseRounds::forget(std::uint32_t unit) {
  comm_thread_.tell([&](PendingRequests& requests) { requests.forget(unit); });
}

}  // namespace elrun::inline v0
