#pragma once
/// \file PhaseRounds: this rank's way through the phases of a step. In exchange rounds the others serve it and it serves them; it leaves a
/// phase once nobody needs anything more of it. rounds.hpp says what a round is, comm_thread.hpp on which thread it runs.
///
/// Called by the job's thread. Every wait is for rounds, which end with the world at the latest. Then the calls that wait return false, and
/// those that request do nothing. What is asked for is named by the unit's number; nothing here knows the program's scopes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lib/job/gather/comm_thread.hpp"
#include "lib/job/gather/round_exchange.hpp"
#include "lib/job/gradients/reducer.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/job/state/shard_map.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

class PhaseRounds {
 public:
  /// All outlive it. Rounds read and write `state` and `reducer` as round_exchange.hpp says, in the order of `memory`.
  PhaseRounds(JobWorld& world, ModelState& state, GradientReducer& reducer, const ShardMap& shards, RoundsMemory& memory);

  /// For the world that `reducer` and `shards` were made for. `overlap`: as Plan::overlap.
  void plan_world(bool overlap);
  /// Nothing of an old world is under way any more, and all requests are dropped. Rethrows what a round threw on the other thread.
  void begin_anew(std::size_t units);

  /// Whether ranks go through their slots together.
  [[nodiscard]] bool in_phases() const { return state_.parameters_are_sharded() || reducer_.is_per_slot(); }
  /// Whether what ranks do for each other in their slots happens while they compute.
  [[nodiscard]] bool overlaps() const { return overlap_ && in_phases() && world_.size() > 1; }

  /// A step is handed out, or the one at hand is dropped.
  void begin_step();
  /// Between slots: what the job's stream was given so far changes what rounds give.
  void state_changed() { memory_.mark(marks_.state); }
  /// Slots of this step that this rank is through with, where all go through them together.
  [[nodiscard]] std::size_t slots_through() const { return through_; }
  /// Through with the slots of all ranks.
  [[nodiscard]] bool is_through() const { return through_ == busiest_; }

  /// The program gets a slot.
  void begin_slot(const Phase& phase);
  /// Until this rank has the weights of `unit`, if any, and, where it does not compute meanwhile, others have the leaves that it finished.
  /// Of the memory for weights holds what `prefetch` says.
  [[nodiscard]] bool serve(const Phase& phase, std::optional<std::uint32_t> unit);
  /// Serves the others until nobody needs anything more of `phase`.
  [[nodiscard]] bool end_phase(const Phase& phase) { return leave(phase) && end(); }
  /// The same of a slot; with overlap the next one may begin while the last leaves of this one are handed off.
  [[nodiscard]] bool end_slot(const Phase& slot);
  /// Of a rank that has run all of its slots: others may have more of them. `step`: decided steps.
  [[nodiscard]] bool end_step(std::uint64_t step);

  /// Until there is room for one more leaf in `slot`: at most one other that is final waits to be handed off, and none where nothing
  /// happens meanwhile. When the world is over there is always room, for nobody else touches leaves any more.
  void wait_for_room(const Phase& slot);
  /// The leaf of a unit is final once the job's stream has done what it was given so far.
  void hand_off(std::uint32_t unit);
  /// Weights that are probably needed next. What the job's stream was given so far is the last to use the memory in which they arrive.
  void prefetch(std::uint32_t unit);
  /// Weights are needed no more.
  void forget(std::uint32_t unit);

 private:
  void enter(const Phase& phase);
  void ask_for(std::uint32_t unit);
  [[nodiscard]] bool leave(const Phase& phase);
  [[nodiscard]] bool end();
  JobWorld& world_;
  ModelState& state_;
  GradientReducer& reducer_;
  const ShardMap& shards_;
  RoundsMemory& memory_;
  RoundMarks marks_;
  std::vector<bool> asked_for_;   // by unit: weights are here, on their way or requested
  std::optional<Phase> entered_;  // the last one other than a slot
  bool overlap_ = false;
  std::size_t busiest_ = 0;  // most slots that any rank has
  std::size_t through_ = 0;
  RoundExchange round_;
  CommThread comm_thread_;  // the last member: its thread ends before what its rounds use
};

}  // namespace elrun::inline v0
