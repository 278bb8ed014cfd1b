#pragma once
/// \file Core: whether a save may be committed. Votes, the deadline and ownership in; wait, commit or give up out.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "checkpoint/names.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

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

/// The state of one save as its leader sees it. Values only: the caller owns the clock and the network.
struct SaveRound {
  CheckpointId id;
  std::uint32_t world = 1;
  Deadline deadline;
  std::vector<std::optional<PartVote>> votes{};  ///< By rank.
  std::optional<Failure> ended{};                ///< Set once: ownership lost, or a vote that no correct rank casts.
};

[[nodiscard]] SaveRound begin_round(CheckpointId id, std::uint32_t world, Deadline deadline);
/// Counts a vote. A second equal one changes nothing; votes of another save are ignored.
[[nodiscard]] SaveRound with_vote(SaveRound round, PartVote vote);
[[nodiscard]] SaveRound with_owner_lost(SaveRound round, Failure why);

struct WaitForVotes {
  Instant until;
  std::string why;
};
struct CommitSave {
  std::vector<PartVote> votes;
};
struct AbandonSave {
  Failure why;
};
using SaveVerdict = std::variant<WaitForVotes, CommitSave, AbandonSave>;
[[nodiscard]] SaveVerdict verdict(const SaveRound& round, Instant now);

}  // namespace elrun::inline v0
