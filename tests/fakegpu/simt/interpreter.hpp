#pragma once
/// \file Runs the twin of a kernel as a grid: blocks one after another, the threads of a block in turns.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tests/fakegpu/simt/twin.hpp"

namespace fakegpu {

class Runtime;

struct GridRun {
  TwinBody body;
  void** arguments;
  dim3 grid, block;
  std::size_t shared_bytes;  ///< Of dynamic shared memory.
};

/// Under the runtime's lock. Blocks and threads come in an order that the seed chooses. False: the kernel was stopped, for it would have
/// touched what it must not.
bool run_grid(Runtime& runtime, const GridRun& run);

}  // namespace fakegpu
