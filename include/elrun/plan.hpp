#pragma once
/// \file The plan: what is fixed for a job's life, whatever happens to its world.

#include <cstdint>
#include <string>
#include <vector>

#include <elrun/export.hpp>
#include <elrun/optimizer.hpp>
#include <elrun/tensor.hpp>

namespace elrun::inline v0 {

/// Whether a state is whole on every rank or cut into shards over them.
enum class Spread : std::uint8_t { replicated, sharded };

/// Where each state lives. ZeRO's stages are rows of this table. It never changes a bit of the result.
struct Placement {
  Spread parameters = Spread::replicated;
  Spread gradients = Spread::replicated;
  Spread optimizer = Spread::replicated;
  friend constexpr bool operator==(const Placement&, const Placement&) = default;
};

/// zero(0): all replicated. zero(1): optimizer sharded. zero(2): gradients too. zero(3): parameters too.
[[nodiscard]] constexpr Placement zero(int stage) {
  return {stage >= 3 ? Spread::sharded : Spread::replicated, stage >= 2 ? Spread::sharded : Spread::replicated,
          stage >= 1 ? Spread::sharded : Spread::replicated};
}

enum class Reduce : std::uint8_t { exact };  ///< The canonical tree: the same bits at any world size.

/// A job's plan. Everything but `placement` and `steps` is hashed into the checkpoint: another plan is another job.
struct Plan {
  std::uint64_t global_batch = 0;  ///< Samples per step.
  std::uint64_t micro_batch = 0;   ///< Samples per slot; divides `global_batch`. Slots per step V = global / micro.
  std::uint64_t samples = 0;       ///< Samples of the data set, N. Positions beyond go into the next epoch.
  std::uint64_t data_hash = 0;     ///< Hash of the data's content, so that a checkpoint meets its own data again.
  std::uint64_t steps = 0;         ///< Steps until the job is over. More may be asked of a finished job later.
  std::uint64_t seed = 0;          ///< Of data order, initial values and slots' random numbers.
  Placement placement = zero(0);
  Reduce reduce = Reduce::exact;
  Optimizer optimizer = Optimizer::adamw;  ///< `Step::apply` takes the options of this one, and of no other.
  std::string numeric;             ///< The program's own part of the numeric class: change it when its arithmetic changes.

  [[nodiscard]] constexpr std::uint64_t slots() const { return micro_batch == 0 ? 0 : global_batch / micro_batch; }
  /// Every contradiction, in sentences with the remedy; empty when the plan holds.
  [[nodiscard]] ELRUN_API std::vector<std::string> problems() const;
};

/// What the checkpoints of a job are and where.
struct CheckpointOptions {
  std::string directory;      ///< Empty: no checkpoints; a failure then begins the job again (same bits).
  std::uint64_t every = 0;    ///< Steps between checkpoints; 0: only the final one.
  std::uint32_t keep = 3;     ///< Committed checkpoints to keep; at least 2.
};

}  // namespace elrun::inline v0
