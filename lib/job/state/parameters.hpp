#pragma once
/// \file Parameters: where the parameters of a rank lie. What is frozen is whole on every rank; of what trains a rank has all, or a shard and the
/// units that it holds at the time.
///
/// * Whole, and sharded on the host: at addresses for the whole model, which never change. Where they are sharded, pages come and go.
/// * Sharded on a device, where pages do not: the shard lies in an array of its own, as moments do, and a held unit in a buffer of a pool, with a copy of the
///   shard's part. The shard is what counts: what is written to the buffer becomes the state's by `keep_written` alone.
///
/// Called by the job's thread. Exchange rounds read and write by the spans of `own` and `unit`.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "lib/device/memory.hpp"
#include "lib/job/declare/layout.hpp"
#include "lib/job/state/delivery.hpp"
#include "lib/job/state/paged_arena.hpp"
#include "lib/job/state/shared_buffers.hpp"

namespace elrun::inline v0 {

class Parameters {
 public:
  virtual ~Parameters() = default;

  // ---- the shard; where parameters are whole nothing follows from it

  /// Memory for that shard of what trains. The one before stays, and so do values at their addresses where those never change.
  virtual void begin_shard(Cut cut) = 0;
  /// That one of the two alone stays.
  virtual void keep_only(Cut cut) = 0;
  /// Where pieces of the shard lie; where parameters are whole, all.
  [[nodiscard]] virtual PiecesIn shard() const = 0;
  /// The same of the shard before; where there is none, of the only one.
  [[nodiscard]] virtual PiecesIn shard_before() const = 0;
  [[nodiscard]] std::span<float> own(const Piece& piece) const { return part(shard(), piece); }
  [[nodiscard]] std::span<float> own_before(const Piece& piece) const { return part(shard_before(), piece); }
  /// Of the shard, the pieces in that unit.
  [[nodiscard]] std::span<const Piece> own_pieces(std::uint32_t unit) const { return parts_[unit]; }

  // ---- what is frozen

  /// From the last element that trains to the unit's end, with its padding.
  [[nodiscard]] virtual std::span<float> frozen(std::uint32_t unit) const = 0;

  // ---- units, where parameters are sharded

  /// So many can be held at one time without more memory, where pages do not come and go.
  virtual void make_room(std::size_t units) = 0;
  /// Memory for all of it that trains; what belongs to the shard is there.
  virtual void hold(std::uint32_t unit) = 0;
  /// What was written to the shard's part while the unit was held is the shard's. While no round is under way, for rounds read the shard.
  virtual void keep_written(std::uint32_t unit) = 0;
  /// The shard stays.
  virtual void let_go(std::uint32_t unit) = 0;
  /// All of a unit that trains, which is held, or whole.
  [[nodiscard]] virtual std::span<float> unit(std::uint32_t unit) const = 0;

  // ---- all

  /// Memory for all that this rank holds is there: what comes from others waits for none.
  virtual void make_resident() = 0;
  /// All parameters at their addresses. Empty where they are sharded on a device.
  [[nodiscard]] virtual const PagedArena& pages() const = 0;
  /// Of the shard, what is frozen, and pages of units that are held,
  [[nodiscard]] virtual std::uint64_t held_bytes() const = 0;
  /// and most of it so far, with buffers for units.
  [[nodiscard]] virtual std::uint64_t held_bytes_max() const = 0;

 protected:
  void find_pieces(const Layout& layout, Cut cut) {
    parts_.assign(layout.units.size(), {});
    for (const Piece& p : pieces(layout, cut)) parts_[p.unit].push_back(p);
  }

 private:
  std::vector<std::vector<Piece>> parts_;  // by unit
};

/// `shared_buffers`: where whole parameters lie, if peers may read them; all else lies in its private memory, which outlives them.
[[nodiscard]] std::unique_ptr<Parameters> make_parameters(const Layout& layout, bool sharded, SharedBuffers& shared_buffers);

}  // namespace elrun::inline v0
