#pragma once
/// \file LeafMemory: where the leaves of units lie while they are made, handed off and folded: this rank's, and the parts of other ranks' that belong to
/// its shard. On the host every unit has addresses, and pages come and go under them. On a device a unit takes buffers of a pool.
///
/// A unit goes this way in every micro-step: `open`, `finish`, `sent` (a rank without a slot has none of them), in between `arriving` of each other
/// rank that has a slot, and `folded`. Leaves are opened and finished on one thread; all else may happen on another one at the same time, for another unit.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <elrun/tensor.hpp>

#include "lib/device/memory.hpp"
#include "lib/job/arrays/rounds_memory.hpp"
#include "lib/job/declare/layout.hpp"

namespace elrun::inline v0 {

/// Of one rank in one world.
struct LeafShapes {
  struct OfUnit {
    LeafRange leaf;  ///< In the gradients' space.
    LeafRange mine;  ///< In the unit: what this rank folds.
    [[nodiscard]] std::uint64_t size() const { return leaf.end - leaf.begin; }
    [[nodiscard]] std::uint64_t part() const { return mine.end - mine.begin; }
  };
  std::vector<OfUnit> units;
  std::uint32_t world = 1, rank = 0;
  DType type = DType::f32;  ///< Of a final leaf, which then takes the first part of its memory.
  /// Of memory in floats: what elements of a final leaf take.
  [[nodiscard]] std::uint64_t taken(std::uint64_t elements) const { return elements * size_of(type) / sizeof(float); }
};

class LeafMemory {
 public:
  virtual ~LeafMemory() = default;
  /// So many leaves can be open or wait to be sent at one time without more memory, and the parts of one unit arrive, where pages do not come and go.
  virtual void make_room(std::size_t leaves) = 0;
  /// Nothing is there any more. When no other call is under way.
  virtual void clear() = 0;
  /// Of the unit's leaf, as floats; contents not specified. It may be open already.
  virtual void open(std::uint32_t unit) = 0;
  /// Where the open leaf begins.
  [[nodiscard]] virtual float* leaf(std::uint32_t unit) const = 0;
  /// The leaf is final.
  virtual void finish(std::uint32_t unit) = 0;
  /// Where the part of another rank's leaf that this rank folds arrives.
  [[nodiscard]] virtual float* arriving(std::uint32_t unit, std::uint32_t rank) = 0;
  /// The other ranks have their parts of the final leaf; this rank's stays.
  virtual void sent(std::uint32_t unit) = 0;
  /// Of what this rank folds: the part of a rank's leaf that has arrived, or of its own that was sent.
  [[nodiscard]] virtual const float* part(std::uint32_t unit, std::uint32_t rank) const = 0;
  /// All parts were added.
  virtual void folded(std::uint32_t unit) = 0;

  /// Most bytes so far that were there at one time; on any thread.
  [[nodiscard]] std::uint64_t bytes_max() const {
    const std::lock_guard lock{mutex_};
    return bytes_max_;
  }

 protected:
  /// Memory comes and goes in here.
  template <class Change>
  void change(const Change& change) {
    const std::lock_guard lock{mutex_};
    change();
    bytes_max_ = std::max(bytes_max_, held_bytes());
  }

 private:
  [[nodiscard]] virtual std::uint64_t held_bytes() const = 0;
  mutable std::mutex mutex_;
  std::uint64_t bytes_max_ = 0;
};

/// Leaves are made in the order of `memory`; what comes after that is in the order of `rounds`, which is of the same memory. Both outlive it.
[[nodiscard]] std::unique_ptr<LeafMemory> make_leaf_memory(LeafShapes shapes, Memory& memory, RoundsMemory& rounds);

}  // namespace elrun::inline v0
