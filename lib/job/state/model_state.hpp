#pragma once
/// \file ModelState: this rank's parameters and optimizer moments: their memory, cut, update, hash, and which runs of them are saved,
/// loaded and sent.
///
/// What always holds:
/// * Where parameters are sharded, there is memory for what is frozen, for this rank's shard, and for units between `hold_unit` and
///   `let_go_of_unit`. Where they lie is for parameters.hpp to say. Units whose weights are bf16 are held in the same way, whole or not, in buffers
///   of rounded_units.hpp; parameters, hash, checkpoints and what members send each other of the state are the masters.
/// * Moments are those of the shard `cut()`, one array for each of the optimizer's kinds.
/// * Between `begin_recut` and `finish_recut` or `undo_recut` the old shard is there, too.
/// * `is_whole()` says that parameters outside of the shard are of the same step as those inside.
///
/// Called by the job's thread. Exchange rounds read and write parameters on the communication thread, by the spans that `weights` gave;
/// no unit is held or let go of while a round brings it. Nothing here knows the world, votes or checkpoints.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/plan.hpp>

#include "checkpoint/format/model.hpp"
#include "lib/device/memory.hpp"
#include "lib/job/declare/layout.hpp"
#include "lib/job/recover/member_status.hpp"
#include "lib/job/recover/state_transfer.hpp"
#include "lib/job/state/arena.hpp"
#include "lib/job/state/delivery.hpp"
#include "lib/job/state/hash_beside.hpp"
#include "lib/job/state/paged_arena.hpp"
#include "lib/job/state/parameters.hpp"
#include "lib/job/state/rounded_units.hpp"
#include "lib/job/state/shard_map.hpp"
#include "lib/job/state/shared_buffers.hpp"
#include "lib/job/state/update.hpp"

namespace elrun::inline v0 {

/// What moves when shards are cut anew, or a member gets the state of others.
struct StateMove {
  struct Kept {
    std::span<const std::byte> from;
    std::span<std::byte> to;
  };
  Delivery exchange;
  std::vector<Kept> kept;  ///< What this rank has of its new shard in its old one. As it stays, it is read by the exchange as well.
};

/// The class has more than 25 methods because what is saved, sent and hashed of the state follows from how it is cut, and from nothing else.
class ModelState {
 public:
  ModelState() = default;
  /// Makes the parameters; the moments come with the first `allocate`. `shared_buffers`: where whole parameters lie, if
  /// peers may read them; all else lies in its private memory, which outlives the state.
  ModelState(Layout layout, const Placement& placement, Optimizer optimizer, SharedBuffers& shared_buffers);

  [[nodiscard]] const Layout& layout() const { return layout_; }
  [[nodiscard]] bool parameters_are_sharded() const { return placement_.parameters != Sharding::replicated; }
  [[nodiscard]] bool optimizer_is_whole() const { return placement_.optimizer == Sharding::replicated; }

  // ---- memory and cut

  /// Where all of it lies.
  [[nodiscard]] Memory& memory() const { return *memory_; }

  /// Moments of that shard, all zeros, and memory for its parameters. What was held of another shard of the parameters stays.
  void allocate(Cut cut);
  /// The same where the old contents do not matter: parameters outside of the shard lose their memory. `unspecified`: moments may be anything, for all of them come at once.
  enum class Contents : std::uint8_t { zeros, unspecified };
  void allocate_anew(Cut cut, Contents moments);
  /// Memory for parameters is there before others send them: a page that is touched first costs more than to copy into it. Moments always have theirs.
  void make_resident() { parameters_->make_resident(); }
  /// The shard that this rank holds.
  [[nodiscard]] Cut cut() const { return cut_; }
  /// Nothing of the new shard is specified until what `transfer` names has been copied and has arrived, which is all of it.
  void begin_recut(Cut to);
  void finish_recut();
  void undo_recut();
  /// All of the new shard has arrived, and whether all others have theirs is not known yet: both are kept. `in`: the generation of the recut. Any thread, while no other knows of the state
  /// but by parameters.
  void await_recut(const Generation& in);
  /// Memory for moments of a shard that this rank may have later: `allocate` takes it first. Where none is large enough, all of it is given back, and new memory is taken.
  [[nodiscard]] std::vector<Arena<float>>& reserved_moments() { return reserved_; }
  /// From now on, memory of old moments is reserved as well; or nothing is, and what was is given back.
  void reserve_moments(bool reserve);
  /// As members tell each other; see HeldCut.
  [[nodiscard]] HeldCut held_cut() const;

  /// All parameters at their addresses. Empty where they are sharded on a device.
  [[nodiscard]] const PagedArena& parameters() const { return parameters_->pages(); }
  /// A piece of the shard; where parameters are whole, any.
  [[nodiscard]] std::span<float> parameter(const Piece& piece) const { return parameters_->own(piece); }
  /// What of a unit does not train, with its padding.
  [[nodiscard]] std::span<float> frozen(std::uint32_t unit) const { return parameters_->frozen(unit); }
  /// As Parameters has them.
  [[nodiscard]] std::uint64_t parameter_bytes() const { return parameters_->held_bytes(); }
  [[nodiscard]] std::uint64_t parameter_bytes_max() const { return parameters_->held_bytes_max() + rounded_.bytes(); }
  [[nodiscard]] std::span<float> moment(std::size_t kind) const { return moments_[kind].span(); }
  [[nodiscard]] std::size_t moments() const { return moments_.size(); }
  [[nodiscard]] std::uint64_t moments_bytes() const;

  // ---- units whose parameters are sharded, or whose weights are bf16

  /// The program sees bf16 of it: what is held of it is what masters round to.
  [[nodiscard]] bool rounds(std::uint32_t unit) const { return rounded_.rounds(unit); }
  /// So many can be held at one time without more memory, where pages do not come and go.
  void make_room(std::size_t units);
  /// What this rank has of it is there. Of one that is held already nothing changes.
  void hold_unit(std::uint32_t unit);
  /// The program may have written to this rank's shard of it. While no round is under way.
  void keep_written(std::uint32_t unit);
  /// This rank's shard of it stays.
  void let_go_of_unit(std::uint32_t unit);
  /// All of a unit that trains, as parameters are; it is held, or whole.
  [[nodiscard]] std::span<float> unit(std::uint32_t unit) const { return parameters_->unit(unit); }
  /// The same as the program sees it.
  [[nodiscard]] std::span<std::byte> seen(std::uint32_t unit) const;
  /// Values of the program for elements from `begin` on of a held unit that rounds: to the masters that are here, and to what it sees.
  void write_rounded(std::uint32_t unit, std::uint64_t begin, std::span<const float> values);
  /// Of the elements that train, as parameters are: those of a shard that does not wrap. Where all of it is this rank's, as its own shard has them; else the unit is
  /// whole, or held and does not round.
  [[nodiscard]] std::span<float> weights(std::uint32_t unit, Cut cut) const;
  /// A round begins: of what the one before gave, nothing is needed any more.
  void begin_round() { rounded_.begin_round(); }
  /// Of a shard that does not wrap, as it travels: what this rank gives of its own, until the next round begins, made in the order of `in`,
  [[nodiscard]] std::span<const std::byte> weights_to_give(std::uint32_t unit, Cut cut, Memory& in);
  /// and where it arrives in a unit that is held.
  [[nodiscard]] std::span<std::byte> weights_to_take(std::uint32_t unit, Cut cut) const;
  /// Of what the program sees, and of the values that it gave.
  [[nodiscard]] std::uint64_t hash_of_unit(std::uint32_t unit) const;

  // ---- the step

  /// What `update` and `gather` do in this world. `gradient`: in which space the reduced gradient will be given.
  void plan_world(const ShardMap& shards, std::uint32_t rank, Space gradient);
  /// Updates the shard with step `t`, the first of which is 1. Where other ranks update the rest, the parameters are not whole until
  /// `gather` has succeeded. The cut is that of the world that was planned last.
  void update(const AnyOptimizer& optimizer, float lr, float scale, std::uint64_t t, const float* gradient);
  /// One exchange, in which ranks that hold a copy together give each other their parameters.
  [[nodiscard]] const Delivery& gather() const { return gather_; }
  [[nodiscard]] bool is_whole() const { return whole_; }
  void set_whole(bool whole) { whole_ = whole; }

  // ---- hash, save, load

  /// This rank's part of the state hash. Words count in the parameters' space, for all kinds.
  [[nodiscard]] std::uint64_t hash_part(const ShardMap& shards, std::uint32_t rank) const;
  /// What is frozen. Ranks compare its hash.
  [[nodiscard]] std::vector<HashedRun> frozen_parameters() const;
  /// All parameters that every rank has. Likewise.
  [[nodiscard]] std::vector<HashedRun> replicated_parameters() const;
  /// A sample of them: windows of 64 KiB, 64 of them or one for each unit, an equal distance apart. Where the first begins follows from `sample`. A rank that missed
  /// an update has other values in nearly every element, and so in these.
  [[nodiscard]] std::vector<HashedRun> replicated_sample(std::uint64_t sample) const;
  /// What lies behind the last tensor of each unit. No checkpoint holds it, a failed exchange may have left anything there, and it counts in
  /// the state hash.
  void zero_padding();
  /// What this rank writes. A checkpoint has every kind for every element of a unit, so the moments of frozen tensors are zeros there.
  [[nodiscard]] std::vector<Fragment> to_save(const ShardMap& shards, std::uint32_t rank);
  /// What it reads: all that it holds.
  [[nodiscard]] std::vector<Fragment> to_load();

  /// How `plan` moves parameters and moments. Of what is frozen each member that brings a state and host state gives a part.
  [[nodiscard]] StateMove transfer(const StateTransfer& plan, std::span<const MemberStatus> statuses, const ShardMap& shards,
                                   std::uint32_t rank) const;
  /// What is frozen alone, by rank in a world of so many: each of `givers` gives a part of it to each of `takers`, who are others. Both in rank order.
  [[nodiscard]] Delivery transfer_frozen(std::span<const std::uint32_t> givers, std::span<const std::uint32_t> takers, std::uint32_t world,
                                         std::uint32_t rank) const;
  /// Any thread, while nobody else changes the state.
  void copy(std::span<const StateMove::Kept> kept) const;

 private:
  /// What `giver`, which is one of `givers`, gives of what is frozen.
  [[nodiscard]] std::vector<std::span<float>> part_of_frozen(std::span<const std::uint32_t> givers, std::uint32_t giver) const;
  [[nodiscard]] std::vector<Fragment> fragments(const std::vector<Piece>& shard, bool with_frozen_moments);
  void allocate(Cut cut, Contents moments);
  [[nodiscard]] Arena<float> new_moment(std::uint64_t count, Contents contents);
  void give_back(std::vector<Arena<float>>&& moments);

  Memory* memory_ = &host_memory();
  Layout layout_;
  Placement placement_;
  Optimizer optimizer_{};
  std::unique_ptr<Parameters> parameters_;
  RoundedUnits rounded_;
  std::vector<std::uint64_t> values_given_;  // by unit: hashes of what write_rounded got
  std::vector<Arena<float>> moments_;        // as moments_of(optimizer_)
  std::vector<Arena<float>> reserved_;       // memory for later moments
  bool reserves_ = false;
  Cut cut_{};
  struct Old {
    Cut cut;
    std::vector<Arena<float>> moments;
    Generation awaits{};  // of the recut, once all of the new shard has arrived
  };
  std::optional<Old> old_;     // during a recut
  Generation recut_in_{};      // the last one that all members finished, as far as is known here
  Arena<float> frozen_zeros_;  // what a checkpoint's moments of frozen tensors are
  Arena<UpdateRun> updates_;   // in this rank's shard
  std::uint64_t update_tiles_ = 0;
  Delivery gather_;
  bool whole_ = true;
};

}  // namespace elrun::inline v0
