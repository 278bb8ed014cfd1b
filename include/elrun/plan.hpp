#pragma once
/// \file The plan: what is fixed for a job's life, whatever happens to its world.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <elrun/export.hpp>
#include <elrun/optimizer.hpp>
#include <elrun/tensor.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// How a state lies in the world: across the nodes, and inside of each.
enum class Sharding : std::uint8_t {
  replicated,       ///< Whole on every rank.
  sharded,          ///< Cut into one shard per rank of the world.
  sharded_in_node,  ///< Replicated across nodes: each has all of it, cut into one shard per rank of that node.
  mirrored,         ///< Sharded, and each shard is on two ranks, on different nodes where there are several.
};

/// When gradients travel to the owners of their shards.
enum class Exchange : std::uint8_t {
  automatic,  ///< `per_slot` where gradients are sharded, or where `per_step` does not fit into `Plan::memory_per_rank`.
  per_step,   ///< Each rank sums its slots up, and one exchange does the rest: least traffic, but whole gradients on
              ///< every rank while a step is computed.
  per_slot,   ///< A unit's gradient leaves as soon as its slot has made it: sums of a rank's own shard are all it keeps.
};

/// Where each state lives. The stages of ZeRO (Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion
/// parameter models", SC'20) are rows of this table. It never changes a bit of the result.
/// What is frozen is whole on every rank.
struct Placement {
  Sharding parameters = Sharding::replicated;
  Sharding gradients = Sharding::replicated;
  Sharding optimizer = Sharding::replicated;
  Exchange exchange = Exchange::automatic;
  friend constexpr bool operator==(const Placement&, const Placement&) = default;
};

/// zero(0): all replicated. zero(1): optimizer sharded. zero(2): gradients too. zero(3): parameters too.
[[nodiscard]] constexpr Placement zero(int stage, Exchange exchange = Exchange::automatic) {
  return {stage >= 3 ? Sharding::sharded : Sharding::replicated, stage >= 2 ? Sharding::sharded : Sharding::replicated,
          stage >= 1 ? Sharding::sharded : Sharding::replicated, exchange};
}

/// A stage inside of each node, replicated across them: more memory than the stage alone, but weights come from the own
/// node, and what is lost with a node is still on another. In a world of one node it is the stage alone.
[[nodiscard]] constexpr Placement hybrid(Placement stage) {
  for (Sharding* sharding : {&stage.parameters, &stage.gradients, &stage.optimizer})
    if (*sharding == Sharding::sharded) *sharding = Sharding::sharded_in_node;
  return stage;
}

/// A stage with each shard on two ranks, on different nodes where there are several. Gradients are added up once, their sums go to both, and both apply
/// the same update. So the loss of one rank, or of one node where there are several, takes no decided step back.
/// Of what the stage shards, each of W ranks holds 2/W: with two ranks everything, and a rank alone has the only copy. The two holders of a shard are half a world
/// apart in the order of ranks, which goes by node, rack and zone. A node with more than half of all ranks holds one copy, and all other ranks
/// share the other one: that may be more than 2/W of it for each of them.
[[nodiscard]] constexpr Placement mirrored(Placement stage) {
  for (Sharding* sharding : {&stage.parameters, &stage.gradients, &stage.optimizer})
    if (*sharding == Sharding::sharded) *sharding = Sharding::mirrored;
  return stage;
}

/// How gradients are added up over the slots of a step.
enum class Reduce : std::uint8_t {
  exact,  ///< By the canonical tree: the same bits at any world size, whatever happened on the way.
  fast,   ///< Each rank adds its slots up as they come, and one sum of each rank is exchanged: less memory and traffic where
          ///< a rank's slots are no whole subtree. The result depends on the world; with `Exchange::per_step` only.
};

/// `Plan::samples` of a stream, which has an order of its own and no end that is known. Slot s of step t gets the ids
/// t * global_batch + s * micro_batch and the `micro_batch` - 1 that follow: the same range whoever reads it, and again when the
/// step is done again.
constexpr std::uint64_t endless = ~std::uint64_t{0};

/// A job's plan. Everything but `placement`, `memory_per_rank`, `overlap` and `steps` is hashed into the checkpoint: another plan is another job.
struct Plan {
  std::uint64_t global_batch = 0;  ///< Samples per step.
  std::uint64_t micro_batch = 0;   ///< Samples per slot; divides `global_batch`. Slots per step V = global / micro.
  std::uint64_t samples = 0;       ///< Samples of the data set, N, shuffled anew in each epoch; or `endless`: a stream, in its order.
  std::uint64_t data_hash = 0;     ///< Hash of the data's content, so that a checkpoint meets its own data again.
  std::uint64_t steps = 0;         ///< Steps until the job is over. More may be asked of a finished job later.
  std::uint64_t seed = 0;          ///< Of data order, initial values and slots' random numbers.
  Placement placement = zero(0);
  /// Bytes that the job may take on each rank, without activations and the transport's buffers; 0: as many as it needs.
  /// `Exchange::automatic` goes by it, in every world anew; nothing is refused for it. The machine is not asked: what is
  /// free there is another number on each rank and at each moment, and all ranks have to choose alike.
  std::uint64_t memory_per_rank = 0;
  /// Whether a thread of the job's own exchanges weights and gradients while the program computes, where ranks exchange them in the middle of a slot.
  /// It hands gradients off in the background, and gathers the weights of the unit ahead that came next in the slot before. Takes the memory of a second unit.
  /// In-memory checkpoints (CheckpointOptions) travel so, too, where gradients are exchanged once per step. On a device both run beside the program's kernels. It is for ranks that wait for a slow network: it makes their steps shorter. Where all cores compute and the network is fast, it makes them longer (lib/job/MEASURED.md).
  /// It never changes a bit of the result.
  bool overlap = false;
  Reduce reduce = Reduce::exact;
  /// f32, or bf16: then each slot's gradient is rounded to bf16 (to nearest, ties to even) as it is handed over, and added up
  /// in fp32 all the same. Half the bytes wherever such a leaf travels, above all with `Exchange::per_slot`; other bits than
  /// with f32, and again the same ones in every world. Not with `Reduce::fast`, which has no leaves.
  DType leaves = DType::f32;
  Optimizer optimizer = Optimizer::adamw;  ///< `Step::apply` takes the options of this one, and of no other.
  std::string numeric;                     ///< The program's own part of the numeric class: change it when its arithmetic changes.

  [[nodiscard]] constexpr std::uint64_t slots() const { return micro_batch == 0 ? 0 : global_batch / micro_batch; }
  /// Every contradiction, in sentences with the remedy; empty when the plan holds.
  [[nodiscard]] ELRUN_API std::vector<std::string> problems() const;
};

/// What the checkpoints of a job are and where.
struct CheckpointOptions {
  /// Empty: no checkpoints; a failure then begins the job again (same bits). A relative one is below the working directory at the process's first `configure`; that has to make the same path on all ranks, else
  /// the job ends with 78.
  std::string directory;
  std::uint64_t every = 0;  ///< Steps between checkpoints; 0: none by the number of the step.
  /// Time between the beginnings of two checkpoints; 0: none by time. With `every`, too, whichever comes first. Without them and `budget` there is only the final one.
  Duration interval{0};
  /// The most that checkpoints between steps may cost, as a share of the time, below 1; 0: no limit. Their cost is how long they stop training, and by how much they slow down the steps
  /// beside them. The leader measures it over the last four checkpoints. If the share is used up, a checkpoint that `interval` asks for comes later, and one that `every` asks for waits for a
  /// later multiple. Without both, a checkpoint begins whenever the share allows it.
  double budget = 0;
  std::uint32_t keep = 3;  ///< Committed checkpoints to keep; at least 2.
  /// How long a final checkpoint that cannot be saved (no space, not permitted, gone) is tried again. The state is in memory alone then. As long a start waits for a
  /// storage that hangs, cannot be reached or cannot be read. More than a year is a year.
  Duration final_wait = std::chrono::minutes{10};
  /// A save that fails when no checkpoint was saved, or gone on from, for so long ends the job with exit code 173, and it is not restarted: more work would
  /// be lost with each further step. 0: training goes on, however many saves fail.
  Duration max_age{0};
  /// Checkpoints between steps are written while training goes on: each worker copies its part into memory of its node (as much again as the part) while it
  /// computes the next step, and `elrun ckptd` writes it from there. One save at a time, in 600 s: one that comes while another is written is left out. The final checkpoint
  /// and that of a node which leaves are waited for. Needs elrun, and memory for the copy: where one is missing saves block, and a line says so.
  bool async = false;
  /// With `async`: at most so many bytes per second are written by each node, for all its ranks together, while training goes on; 0: as many as the storage takes.
  Bytes rate{};
  /// Steps between in-memory checkpoints; 0: none. For placements that shard the optimizer's state in one copy, where a lost worker takes its shard with it: all then go on from the newest
  /// in-memory checkpoint, no storage is read, and at most so many steps are done again. Each element is in the host's memory of two workers, on different nodes as with `mirrored(...)`.
  /// One is also made at the first step of each world, while its slots compute where gradients are exchanged once per step. Once that step is decided the next loss finds both parts. It needs no `directory`. Workers that hold both parts of a shard and are lost together
  /// take it with them: then all go back to the newest checkpoint of `directory`. Each worker holds 2/W of the state once, and twice while one is made; with a GPU a third time, on its way.
  /// In an elastic job it takes memory for 2/(W - 1) if that is free, so that a loss waits for none.
  /// What a program writes to frozen tensors after its first step does not go back with it.
  std::uint64_t in_memory_every = 0;
};

}  // namespace elrun::inline v0
