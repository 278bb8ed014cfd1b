#pragma once
/// \file A twin: a kernel compiled for the host. What the twin's library and the fake runtime say to each other.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace fakegpu {

/// Calls the kernel once, as one thread of the grid. The arguments are as cudaLaunchKernel gets them.
using TwinBody = void (*)(void** arguments);

struct Twin {
  const char* type_name;  ///< Of TwinOf<kernel>, mangled: it holds the kernel's name.
  const char* file;       ///< Where it was defined. Two files may have kernels of one name in unnamed namespaces.
  TwinBody body;
  const std::size_t* sizes;  ///< Of the arguments.
  std::size_t count;
};

/// When the twin's library is loaded.
void register_twin(const Twin& twin);

}  // namespace fakegpu
