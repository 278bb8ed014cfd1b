#pragma once
/// \file The shared memory of the block that runs. `__shared__` variables are variables of static duration of the twin's library, whose
/// writable part is taken for shared memory as a whole. Dynamic shared memory is a piece of its own.

#include <cstddef>

#include "tests/fakegpu/runtime/checker.hpp"
#include "tests/fakegpu/simt/twin.hpp"

namespace fakegpu {

/// A kernel begins, whose twin is `body`, with so much dynamic shared memory.
void set_shared_memory(TwinBody body, std::size_t dynamic_bytes);

struct SharedPlace {
  SharedMemory* memory = nullptr;  ///< Null: the address is not in shared memory.
  std::size_t offset = 0;
};
[[nodiscard]] SharedPlace shared_place_of(const void* p);

}  // namespace fakegpu
