#pragma once
/// \file Every kernel that this program can launch, and a call that loads them all. CUDA loads a kernel when it is launched first, and may wait for
/// the device then: beside a collective that waits for another process, which waits for this launch, nobody goes on. So all are loaded before.

#include <cstddef>

namespace elrun::inline v0 {

/// One of them. launch<kernel> (launch.cuh) has one for each kernel, made before main: nobody keeps a list, so none is forgotten.
class KnownKernel {
 public:
  /// `stub`: what cudaLaunchKernel takes.
  explicit KnownKernel(const void* stub) noexcept;
  KnownKernel(const KnownKernel&) = delete;
  KnownKernel& operator=(const KnownKernel&) = delete;

 private:
  friend std::size_t preload_kernels();
  const void* stub_;
  const KnownKernel* next_;
};

/// Loads all of them on the calling thread's current device, and returns how many there are. Throws Error (`mismatch`, fix_config, where this build has no
/// code for the device). A program's own kernels, which it launches in another way, are its own to load.
std::size_t preload_kernels();

}  // namespace elrun::inline v0
