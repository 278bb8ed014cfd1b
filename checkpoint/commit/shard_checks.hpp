#pragma once
/// \file ShardChecks: who looks into the shards of a checkpoint (length, header, block table) before a start goes on from it. The leader hands shares to
/// all ranks; what a rank finds bad it looks into itself before anything is said of the checkpoint.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/format/records.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// What the leader asks of all ranks: to look into their shares of this checkpoint.
struct ShardQuestion {
  CheckpointId id;
  std::uint32_t manifest_crc = 0;  ///< A rank that sees another manifest can say nothing of its share.
};
[[nodiscard]] ByteVector encode(const ShardQuestion& check);
[[nodiscard]] Result<ShardQuestion> decode_shard_question(ByteSpan bytes);

/// What one rank found.
struct ShardFindings {
  std::uint32_t rank = 0;
  bool is_blind = false;             ///< It could not look: all of its share is open.
  std::vector<std::uint32_t> bad{};  ///< Numbers of files, ascending.
  std::string why{};                 ///< The first reason, for people.
  [[nodiscard]] bool is_good() const { return !is_blind && bad.empty(); }
};
[[nodiscard]] ByteVector encode(const ShardFindings& findings);
[[nodiscard]] Result<ShardFindings> decode_shard_findings(ByteSpan bytes);

/// The files that a rank looks into.
[[nodiscard]] std::vector<std::uint32_t> share_of_checks(std::uint32_t files, std::uint32_t rank, std::uint32_t world);

/// Has all ranks look, this one among them: by rank, what they found. A failure is the end of the world of these ranks.
using AskRanks = std::function<Result<std::vector<ShardFindings>>(const ShardQuestion& check)>;

}  // namespace elrun::inline v0
