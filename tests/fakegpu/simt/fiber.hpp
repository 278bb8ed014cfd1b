#pragma once
/// \file Stacks of their own for the threads of a block, and the switch between them.

#include <cstddef>

namespace fakegpu {

/// Enough for kernels, which have no recursion; a guard page is below.
inline constexpr std::size_t fiber_stack_bytes = 64 << 10;

/// A piece of code that can be left and gone on with.
class Fiber {
 public:
  Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();
  /// The next resume() calls `entry`, which never returns.
  void prepare(void (*entry)());
  /// From the code that owns the fibers: runs this one until it calls leave().
  void resume();
  /// From the fiber that runs.
  static void leave();

 private:
  std::byte* stack_;  ///< The guard page included.
  void* pointer_ = nullptr;
};

}  // namespace fakegpu
