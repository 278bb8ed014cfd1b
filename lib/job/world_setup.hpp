#pragma once
/// \file WorldSetup: what follows from this rank's place in a world: its shards and slots, how gradients are exchanged, and the memory for all that. Called by the job's thread.

#include <cstdint>
#include <span>
#include <vector>

#include "lib/job/declare/memory_table.hpp"
#include "lib/job/gradients/reducer.hpp"
#include "lib/job/job_parts.hpp"

namespace elrun::inline v0 {

class WorldSetup {
 public:
  /// Outlives it.
  explicit WorldSetup(JobParts& job) : job_{job} {}

  /// Throws Error where the machine has less memory than the job takes here, as far as that is known.
  void require_memory(const Layout& layout) const;
  /// What no change of the world moves, and what follows from this rank's place in it as far as that is known.
  /// `before`: whose parameters and moments are taken over.
  void allocate(JobParts* before, Layout layout);
  /// By rank, the number of its node: how the state is cut in a world of these.
  [[nodiscard]] ShardMap shards_of(std::span<const std::uint32_t> nodes) const;
  /// What follows from this rank's place in the world, but for the state: slots, gradients, and who sends what to whom. `computes`: by rank, whether it runs slots.
  void plan_world(ShardMap wanted, std::vector<bool> computes);
  /// From the next step on all ranks run slots. In the middle of a generation, between two steps.
  void let_all_compute();
  /// Where shards are cut so, in their slots ranks need nothing of each other, and each of them holds all parameters, in the host's memory.
  [[nodiscard]] bool ranks_compute_apart(const ShardMap& shards) const;
  /// A step begins: after some of them in a world, memory for its next loss is made beside them (loss_reserve.hpp). Once it is there, the job's leader says how much, once.
  void prepare_for_loss();
  /// For how many elements an in-memory checkpoint takes memory: for those of the world after the loss of a worker, where memory is free. 0: for its own.
  [[nodiscard]] std::uint64_t checkpoint_room() const;
  /// Each generation's group has to be shown anew what its members read of each other.
  void show_to_peers();
  [[nodiscard]] RankBytes held_bytes() const;
  /// Logs what this rank takes, and what the plan costs.
  void show_memory() const;

 private:
  [[nodiscard]] std::vector<std::uint32_t> guess_my_nodes() const;
  [[nodiscard]] GradientReducer::Exchanges choose_exchanges();
  void tell_of_reserve();
  [[nodiscard]] bool reserves_memory() const;
  /// Bytes that this rank may take of what is free: half of its part. The rest is the program's, and that of what comes later.
  [[nodiscard]] std::uint64_t memory_to_reserve(std::uint64_t to_come) const;

  JobParts& job_;
  bool told_of_reserve_ = false;
};

}  // namespace elrun::inline v0
