#pragma once
/// \file MemoryCheckpoints: this member's parts of the job's in-memory checkpoints (`CheckpointOptions::in_memory_every`).
///
/// What always holds:
/// * Whatever the placement, two members hold each element of such a checkpoint, as of mirrored state (shard_map.hpp), in the host's memory. Each member holds the host state.
/// * A member holds one checkpoint of which all members had their parts once, and the next one from `take` until the step after it is decided. Where the generation ends meanwhile,
///   `settle` finds out which is whole, and `keep` leaves that one.
/// * What is held never changes, once it is there.
///
/// Called by the job's thread. Collectives are called on all ranks in the same order, and leave as `expect` (revoked.hpp) says. The source of the method is
/// Wang et al., "GEMINI: Fast failure recovery in distributed training with in-memory checkpoints", SOSP'23.

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lib/job/recover/settle.hpp"
#include "lib/job/state/arena.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

class MemoryCheckpoints {
 public:
  /// Every so many steps; 0: never.
  void configure(std::uint64_t every) { every_ = every; }
  [[nodiscard]] std::uint64_t every() const { return every_; }
  /// A member of the world before may be gone, with its parts.
  void begin_generation() { is_taken_in_this_world_ = moments_wait_ = lacks_moments_ = false; }
  /// After `step` decided steps, in a world of so many ranks: at the multiples, first of all in each world, and before a save to the storage: what is on storage is in memory, or older than
  /// what is. In a world of one nobody else could hold a part.
  [[nodiscard]] bool is_due(std::uint64_t step, std::uint32_t world, bool before_save) const;
  /// Whether the next one, of `step`, may travel while slots compute. The first one of a world does, for a loss is not to wait for it: nobody votes without its parts, and until then members hold
  /// `older` (as of Settled), which a loss in that step goes back to. Where that is missing, or of more than `every()` steps ago, it is waited for. The others: as `overlap` says.
  [[nodiscard]] bool may_come_beside(std::uint64_t step, const std::optional<CompleteCheckpoint>& older, bool overlap) const;
  [[nodiscard]] std::vector<HeldCheckpoint> held() const;
  /// What this member holds, and what of memory it has for that.
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] std::uint64_t memory_bytes() const;

  struct Taking {
    std::uint64_t step = 0;
    std::vector<Aux> host_state;
    bool beside =
        false;  ///< Parts are still on their way when it returns. Then the state must not change before `JobWorld::finish_beside`.
    /// Where memory is taken: for so many elements, if that is more than this one has. Not called else.
    std::function<std::uint64_t()> room{};
  };
  /// Collective, with the state of `step` decided steps on all ranks, of which each holds its shard of `shards`. `nodes`: by rank, the number of its node.
  void take(JobWorld& world, const ModelState& state, const ShardMap& shards, std::span<const std::uint32_t> nodes, Taking taking);
  /// A step was decided since `take`: all members have voted for it, so all have their parts of the newest one.
  void all_have_theirs();
  /// Collective: parameters and moments of `from` get into `state`, which is cut as in `shards`. Returns the host state of that step. `have_parameters`: by rank, as
  /// `have_parameters_of` (settle.hpp) says. Where parameters are whole, those get moments alone. `moments`: later ones come by `restore_moments_beside`; only where parameters are whole, in the
  /// host's memory.
  enum class Moments : std::uint8_t { now, later };
  [[nodiscard]] std::vector<Aux> restore(JobWorld& world, const ModelState& state, const ShardMap& shards, const CompleteCheckpoint& from,
                                         const std::vector<bool>& have_parameters, Moments moments);
  /// Collective: they set out, unless they have or none were left out. This member holds no whole state before `JobWorld::finish_beside`.
  void restore_moments_beside(JobWorld& world, const ModelState& state, const ShardMap& shards, const CompleteCheckpoint& from);
  /// Moments that `restore` left out are not here. The generation ends: then this member has no whole state.
  [[nodiscard]] bool lacks_moments() const { return lacks_moments_; }
  /// Nothing: none is.
  void keep(const std::optional<CompleteCheckpoint>& whole);
  /// In the process of a run of the program before this one.
  void continue_from(MemoryCheckpoints& before) {
    held_ = std::move(before.held_), newest_is_here_ = before.newest_is_here_.load(), spare_ = std::move(before.spare_);
  }

 private:
  struct Held {
    HeldCheckpoint what;
    std::uint64_t size = 0;
    Arena<float> elements;  // `size` of them: parameters of the shard, then each of its moments. The thread's, while this one is on its way
    std::vector<Aux> host_state;
  };
  void keep_memory(Arena<float>&& unneeded);
  /// This member's; null: it has none.
  [[nodiscard]] const Held* part_of(const CompleteCheckpoint& from) const;
  std::uint64_t every_ = 0;
  bool is_taken_in_this_world_ = false, moments_wait_ = false;
  std::atomic<bool> lacks_moments_{false};
  std::vector<Held> held_;                  // the oldest first
  std::atomic<bool> newest_is_here_{true};  // all of it has arrived
  Arena<float> spare_;                      // of one that was replaced or given up, for the next one
  std::vector<ByteVector> staged_;          // what is on its way out of a device's memory
};

}  // namespace elrun::inline v0
