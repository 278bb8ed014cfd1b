#pragma once
/// \file RoundExchange: one exchange round on one rank. All ranks say what they need; one more exchange then brings weights to who wants them,
/// and leaves to the ranks that fold them.
///
/// `run` is called on the job's thread or on the communication thread, one at a time (comm_thread.hpp sees to it). It is made anew for each
/// world. It allocates nothing after the first rounds.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/job/arrays/rounds_memory.hpp"
#include "lib/job/gather/comm_thread.hpp"
#include "lib/job/gather/rounds.hpp"
#include "lib/job/gradients/leaf_stream.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/job/state/shard_map.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// What of the job's work a round comes after, set by the job's thread. The vectors are by unit.
struct RoundMarks {
  RoundsMemory::Mark state;                  ///< All that it gives of the state is there, and the sums of the step before were used.
  std::vector<RoundsMemory::Mark> weights;   ///< The memory in which weights arrive is free for them.
  std::vector<RoundsMemory::Mark> leaves{};  ///< The leaf is final.
};

/// What a round moves. `stream`: none where gradients are exchanged once per step, so that nobody hands off leaves.
struct RoundMoves {
  ModelState& state;
  LeafStream* stream = nullptr;
  const ShardMap& shards;
  RoundsMemory& memory;
  const RoundMarks& marks;
};

class RoundExchange {
 public:
  RoundExchange() = default;
  RoundExchange(std::uint32_t world, std::uint32_t rank);
  RoundExchange(RoundExchange&&) = default;
  RoundExchange& operator=(RoundExchange&&) = default;

  /// Nothing: the world is over. What comes back is valid until the next round.
  std::optional<Heard> run(JobWorld& world, const Need& said, const RoundMoves& moves);

 private:
  bool move(JobWorld& world, const RoundMoves& moves, Result<void>& wrong);
  [[nodiscard]] Failure unexpected_leaf(std::uint32_t rank) const;
  std::uint32_t rank_ = 0;
  std::vector<Need> needs_;  // by rank
  Delivery tell_, move_;
};

}  // namespace elrun::inline v0
