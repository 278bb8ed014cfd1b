#pragma once
/// \file Which twin runs for which kernel. nvcc's code registers a kernel by the address of its stub and its mangled name, a twin comes
/// with the name of its type. Both lead to one key: the demangled name, and the file for names of unnamed namespaces.

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/fakegpu/simt/twin.hpp"

namespace fakegpu {

struct Kernel {
  std::string key;   ///< As of Twins::key.
  std::string name;  ///< For people, without namespaces and arguments.
  std::vector<const Twin*> twins;
  std::uint32_t loaded = 0;         ///< A bit for each device on which it was launched, or asked about.
  std::map<int, int> shared_bytes;  ///< On devices where cudaFuncSetAttribute said how much dynamic shared memory it may have.
};

class Twins {
 public:
  static Twins& get();
  void add_twin(const Twin& twin);
  void add_kernel(const void* stub, const char* mangled);
  /// Null for what is no kernel's stub.
  [[nodiscard]] Kernel* find(const void* stub);
  /// Kernels have to be loaded again on this device.
  void unload(int device);

 private:
  std::mutex mutex_;  ///< Libraries may be loaded while others launch.
  std::unordered_map<const void*, Kernel> kernels_;
  std::unordered_multimap<std::string, Twin> twins_;
};

/// "elrun::v0::(unnamed)::sums_of_squares_kernel@granule.cu", from what nvcc registers.
[[nodiscard]] std::string key_of_kernel(const std::string& mangled);
/// The same from a twin.
[[nodiscard]] std::string key_of_twin(const std::string& type_name, const std::string& file);

}  // namespace fakegpu
