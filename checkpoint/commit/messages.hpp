#pragma once
/// \file Core: what the job carries between ranks for a checkpoint. The leader publishes a Start and a SaveTicket, each rank a PartVote.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/result.hpp>

#include "checkpoint/format/names.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// What the leader decided at the start of a generation; the job publishes its bytes to all ranks.
struct Start {
  FenceNumber fence = 0;                 ///< 0: none could be claimed, for the root cannot be written.
  std::optional<CheckpointId> choice{};  ///< Nothing: the root has no checkpoint, begin at step 0.
  std::uint32_t manifest_crc = 0;        ///< Of the choice, so that every rank reads the very same.
  std::string why{};                     ///< Why this choice, a clause for people.
  std::uint64_t steps_again = 0;         ///< Decided before, and done again.
  std::vector<std::string> notes{};      ///< What was passed over and why, a line each; already logged by the leader.
};
[[nodiscard]] ByteVector encode(const Start& start);
[[nodiscard]] Result<Start> decode_start(ByteSpan bytes);

/// One attempt to save, as the leader announces it.
struct SaveTicket {
  CheckpointId id;
  std::string root;  ///< Identity of the checkpoint root (RUN.json).
};
[[nodiscard]] ByteVector encode(const SaveTicket& ticket);
[[nodiscard]] Result<SaveTicket> decode_save_ticket(ByteSpan bytes);

/// What one rank says about its part of a save: it is durable, or why it is not.
struct PartVote {
  CheckpointId id;
  std::uint32_t rank = 0;
  std::uint64_t part_bytes = 0;  ///< Length of the rank's part file, which lists the shard's ranges and checksums.
  std::uint32_t part_crc = 0;
  std::optional<Failure> refusal;  ///< Set: no.
};

[[nodiscard]] ByteVector encode(const PartVote& vote);
[[nodiscard]] Result<PartVote> decode_part_vote(ByteSpan bytes);
constexpr std::size_t part_vote_bytes_max = 8192;

}  // namespace elrun::inline v0
