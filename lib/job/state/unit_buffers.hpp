#pragma once
/// \file UnitBuffers: equal buffers in a Memory, for units whose pages cannot come and go: a device's. As many as are usually taken at one time are made before the
/// first step, where a device without memory can still be told. Their number grows when all are taken, for scopes may be nested, and never shrinks: CUDA's own
/// calls that give memory back wait until the device has nothing to do.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/device/memory.hpp"
#include "lib/job/state/arena.hpp"

namespace elrun::inline v0 {

/// Whoever gives a buffer back has given all work that uses it to the memory's stream, so that the next taker's comes after it.
class UnitBuffers {
 public:
  UnitBuffers() = default;
  /// Of so many elements each. None is there yet. `memory` outlives them.
  UnitBuffers(std::uint64_t elements, Memory& memory) : elements_{elements}, memory_{&memory} {}

  /// At least so many are there from now on. Throws as Memory::allocate.
  void make(std::size_t count) {
    while (elements_ > 0 && all_.size() < count) {
      free_.reserve(all_.size() + 1);  // so that giving back allocates nothing
      free_.push_back(all_.emplace_back(elements_, *memory_).data());
    }
  }
  /// Whether the next `take` makes none.
  [[nodiscard]] bool has_free() const { return !free_.empty(); }
  /// Contents not specified. Throws as Memory::allocate.
  [[nodiscard]] float* take() {
    if (free_.empty()) make(all_.size() + 1);
    float* const taken = free_.back();
    free_.pop_back();
    return taken;
  }
  void give_back(float* taken) { free_.push_back(taken); }

  /// Of all of them.
  [[nodiscard]] std::uint64_t bytes() const { return all_.size() * elements_ * sizeof(float); }

 private:
  std::uint64_t elements_ = 0;
  Memory* memory_ = &host_memory();
  std::vector<Arena<float>> all_;
  std::vector<float*> free_;
};

}  // namespace elrun::inline v0
