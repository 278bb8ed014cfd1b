#pragma once
/// \file What `verify` compares: one hash per tensor and kind of every copy of the state that there is.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/verify.hpp>

#include "lib/base/bytes.hpp"
#include "lib/job/declare/layout.hpp"
#include "lib/job/state/model_state.hpp"
#include "lib/job/state/shard_map.hpp"

namespace elrun::inline v0 {

struct TensorHash {
  std::string tensor;  ///< "unit/tensor"
  std::string_view kind;
  bool is_cut = false;  ///< Each rank of a copy has a shard, and their hashes add up. Else every rank has the whole tensor.
  std::uint64_t hash = 0;
  std::uint64_t next = 0;  ///< Of that part of a shard which wraps, and belongs to the next copy.
};
/// Of this rank. All ranks have the same tensors and kinds in the same order.
[[nodiscard]] std::vector<TensorHash> hash_tensors(const ModelState& state, const std::vector<UnitSpec>& specs, const Placement& placement,
                                                   Optimizer optimizer);

/// What a rank says: its hashes in that order, then its part of the state hash.
[[nodiscard]] ByteVector encode(const std::vector<TensorHash>& mine, std::uint64_t state_hash_part);
/// Core. `parts`: by rank, what it said. The failure says that a part is no part. `by_node`: each node has a copy.
[[nodiscard]] Result<Verification> compare_copies(const std::vector<TensorHash>& mine, const std::vector<ByteVector>& parts,
                                                  const ShardMap& shards, bool by_node, std::uint64_t step);

}  // namespace elrun::inline v0
