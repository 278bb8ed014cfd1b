#pragma once
/// \file What the workers of one node did to the store in one generation, to be replayed to a store that knows nothing of it.

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "lib/base/planted.hpp"
#include "lib/link/store_call.hpp"

namespace elrun::inline v0 {

constexpr Bytes store_memory_max = 64_MiB;  ///< Of one node; beyond it the oldest is forgotten, and a fresh store lacks it.

/// Of each key its newest change, of each barrier and all_gather the last one that was answered. A value.
class StoreMemory {
 public:
  /// A worker's call was answered.
  void note(StoreRequest request, const StoreReply& reply);
  /// Another generation begins.
  void clear();
  /// All of it, and last that this was all; `node` is the group rank.
  [[nodiscard]] std::vector<StoreRequest> replay(const Generation& generation, std::uint32_t node) const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  using Name = std::tuple<StoreOp, std::string, std::uint32_t, std::uint32_t>;  // with count and rank; all changes are `set`
  void forget(std::map<Name, StoreRequest>::iterator entry);
  std::map<Name, StoreRequest> entries_;
  std::map<std::uint64_t, std::vector<Name>> by_version_;  // the ranks of a node finish a gathering with one version
  std::uint64_t bytes_ = 0;
};

}  // namespace elrun::inline v0
