#pragma once
/// \file RoundedUnits: what the program sees of units whose weights are bf16. Masters are Parameters' (parameters.hpp), and the state; here are buffers with what they
/// round to, while units are in use. Nothing here outlives a unit's use, so nothing grows old when masters change between uses: by an update, a checkpoint, another
/// world.
///
/// What others get of a shard is rounded when it is asked for, in a round, into an array of its own. Called by the job's thread, but for `begin_round`, `given` and `unit`, which
/// the thread of a round calls: one at a time.

#include <cstdint>
#include <span>
#include <vector>

#include "lib/device/memory.hpp"
#include "lib/job/declare/layout.hpp"
#include "lib/job/state/arena.hpp"
#include "lib/job/state/unit_buffers.hpp"

namespace elrun::inline v0 {

class RoundedUnits {
 public:
  RoundedUnits() = default;
  /// `memory` outlives it.
  RoundedUnits(const Layout& layout, Memory& memory);

  [[nodiscard]] bool rounds(std::uint32_t unit) const { return rounds_[unit]; }
  /// Buffers for so many units at one time. Throws as Memory::allocate.
  void make_room(std::size_t units) { buffers_.make(units); }
  /// For all that is given in one round to so many others: of a unit at most `elements` to each.
  void make_room_to_give(std::size_t others, std::uint64_t elements);
  [[nodiscard]] std::uint64_t bytes() const { return buffers_.bytes() + given_.bytes(); }

  [[nodiscard]] bool holds(std::uint32_t unit) const { return at_[unit] != nullptr; }
  /// A buffer for all of a unit that trains. Its contents are not specified.
  void hold(std::uint32_t unit) { at_[unit] = buffers_.take(); }
  void let_go(std::uint32_t unit);
  /// A part of this rank's, in a unit that is held.
  void round(const Piece& p, std::span<const float> masters);
  /// Of a unit that is held.
  [[nodiscard]] std::span<bf16> unit(std::uint32_t unit) const { return {reinterpret_cast<bf16*>(at_[unit]), sizes_[unit]}; }

  /// What was given in the round before is not read any more.
  void begin_round() { taken_ = 0; }
  /// What masters round to, until the next round begins. `in`: whose order that is done.
  [[nodiscard]] std::span<const bf16> given(std::span<const float> masters, Memory& in);

 private:
  Memory* memory_ = &host_memory();
  std::vector<bool> rounds_;          // by unit
  std::vector<std::uint64_t> sizes_;  // elements that train
  UnitBuffers buffers_;               // of half as many floats as elements
  std::vector<float*> at_;            // null: not held
  Arena<bf16> given_;
  std::uint64_t taken_ = 0;  // of it
};

}  // namespace elrun::inline v0
