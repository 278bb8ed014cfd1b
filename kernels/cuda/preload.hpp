#pragma once
/// \file Every kernel that this program can launch, and a call that loads them all. CUDA loads a kernel when it is launched first, and may wait for
/// the device then: beside a collective that waits for another process, which waits for this launch, nobody goes on. So all are loaded before.

#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

namespace elrun::inline v0 {

/// One of them. launch<kernel> (launch.cuh) has one for each kernel, made before main: nobody keeps a list, so none is forgotten.
class KnownKernel {
 public:
  /// `stub`: what cudaLaunchKernel takes. `signature`: __PRETTY_FUNCTION__ of a function of Launch<kernel>.
  KnownKernel(const void* stub, const char* signature) noexcept;
  KnownKernel(const KnownKernel&) = delete;
  KnownKernel& operator=(const KnownKernel&) = delete;
  /// How many blocks of `threads` threads, without dynamic shared memory, the calling thread's current device holds at one time: at least 1. Asked once
  /// for each device; a kernel is launched with blocks of one size. Throws Error.
  [[nodiscard]] unsigned blocks_at_once(unsigned threads);

  [[nodiscard]] const void* stub() const { return stub_; }
  /// Without namespaces and template arguments: "update_kernel". For failures.
  [[nodiscard]] std::string name() const { return name_in(signature_); }
  /// The same of what g++ or clang calls a member function of `Launch<kernel>`; all of it where there is no such name in it.
  [[nodiscard]] static std::string name_in(std::string_view signature);

 private:
  friend std::size_t preload_kernels();
  static constexpr std::size_t devices_max = 64;                     // beyond, each launch asks
  std::array<std::atomic<unsigned>, devices_max> blocks_at_once_{};  // by device; 0: not asked yet
  const void* stub_;
  const char* signature_;
  KnownKernel* next_;
};

/// Loads all of them on the calling thread's current device, and returns how many there are. Throws Error (`mismatch`, fix_config, where this build has no
/// code for the device). A program's own kernels, which it launches in another way, are its own to load.
std::size_t preload_kernels();

}  // namespace elrun::inline v0
