#pragma once
/// \file Core: one checkpoint as a person reads it: its plan, tensors, shards, and what another world would read of it.

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/json.hpp"
#include "checkpoint/format/records.hpp"
#include "checkpoint/tools/reader_share.hpp"

namespace elrun::inline v0 {

struct Inspection {
  std::string where;  ///< Its directory.
  std::string state;  ///< In words, as the list has it.
  Manifest manifest;
  std::uint64_t manifest_bytes = 0;
  std::string
      problem{};  ///< What is wrong with COMMIT or the manifest's checksum, or which of them is of another checkpoint; empty: nothing is.
  /// Of `--plan`; empty: not asked for.
  std::vector<ReaderShare> shares{};
};
[[nodiscard]] std::string inspection_text(const Inspection& one, std::int64_t now_wall_ns);
[[nodiscard]] Json inspection_json(const Inspection& one);

}  // namespace elrun::inline v0
