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

constexpr Bytes store_memory_max =
    64_MiB;  ///< Of one node; beyond it the oldest is forgotten, and no fresh store can go on with the generation.

/// Of each key its newest change, of each barrier and all_gather the last one that was answered. A value.
class StoreMemory {
 public:
  /// A worker's call was answered.
  void note(StoreRequest request, const StoreReply& reply);
  /// Another generation begins.
  void clear();
  /// Not all is remembered. A store that went on from the rest would take keys for absent, and who asks for its next gathering for one that lacks
  /// the answer of the last: so there must be no replay.
  [[nodiscard]] bool has_forgotten() const { return has_forgotten_; }
  /// All of it, and last that this was all; `node` is the group rank.
  [[nodiscard]] std::vector<StoreRequest> replay(const Generation& generation, std::uint32_t node) const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  using Name = std::tuple<StoreOp, std::string, std::uint32_t, std::uint32_t>;  // with count and rank; all changes are `set`
  void forget(std::map<Name, StoreRequest>::iterator entry);
  std::map<Name, StoreRequest> entries_;
  std::map<std::uint64_t, std::vector<Name>> by_version_;  // the ranks of a node finish a gathering with one version
  std::uint64_t bytes_ = 0;
  bool has_forgotten_ = false;
};

}  // namespace elrun::inline v0
