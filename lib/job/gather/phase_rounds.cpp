#include "lib/job/gather/phase_rounds.hpp"

#include <string>

#include "lib/base/assert.hpp"

namespace elrun::inline v0 {

PhaseRounds::PhaseRounds(JobWorld& world, ModelState& state, GradientReducer& reducer, const ShardMap& shards, RoundsMemory& memory)
    : world_{world},
      state_{state},
      reducer_{reducer},
      shards_{shards},
      memory_{memory},
      comm_thread_{{.round =
                        [this](const Need& said) {
                          return round_.run(world_, said,
                                            {.state = state_,
                                             .stream = reducer_.is_per_slot() ? &reducer_.stream() : nullptr,
                                             .shards = shards_,
                                             .memory = memory_,
                                             .marks = marks_});
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

void PhaseRounds::begin_anew(std::size_t units) {
  comm_thread_.begin_anew(units);
  marks_.weights.resize(units), marks_.leaves.resize(units);
  asked_for_.assign(units, false);
  entered_.reset();
}

void PhaseRounds::begin_step() {
  through_ = 0;
  state_changed();
}

/// Slots change nothing of the state; before other phases it may have changed, and between steps in them.
void PhaseRounds::enter(const Phase& phase) {
  if (phase.what == Phase::What::slot || (phase.what == Phase::What::evaluation && entered_ == phase)) return;
  entered_ = phase;
  state_changed();
}

void PhaseRounds::ask_for(std::uint32_t unit) {
  if (!asked_for_[unit]) memory_.mark(marks_.weights[unit]);
  asked_for_[unit] = true;
}

void PhaseRounds::begin_slot(const Phase& phase) {
  enter(phase);
  if (!overlaps()) return;
  comm_thread_.work_alone();
  if (phase.what == Phase::What::slot) comm_thread_.tell([&](PendingRequests& requests) { requests.begin(phase); });
}

bool PhaseRounds::serve(const Phase& phase, std::optional<std::uint32_t> unit) {
  enter(phase);
  if (unit) ask_for(*unit);
  return comm_thread_.until(
      [&](PendingRequests& requests) {
        requests.begin(phase);
        if (unit) requests.want(*unit);
      },
      [&](const PendingRequests& requests) { return (!unit || requests.here(*unit)) && (overlaps() || requests.leaves() == 0); });
}

/// This rank needs nothing more in this phase; others may. False: the world is over.
bool PhaseRounds::leave(const Phase& phase) {
  enter(phase);
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
  memory_.mark(marks_.leaves[unit]);
  comm_thread_.tell([&](PendingRequests& requests) { requests.hand_off(unit); });
}

void PhaseRounds::prefetch(std::uint32_t unit) {
  ask_for(unit);
  comm_thread_.tell([&](PendingRequests& requests) { requests.prefetch(unit); });
}

void PhaseRounds::forget(std::uint32_t unit) {
  asked_for_[unit] = false;
  comm_thread_.tell([&](PendingRequests& requests) { requests.forget(unit); });
}

}  // namespace elrun::inline v0
