#pragma once
/// \file Core: the votes on one save. A vote is known by its save and its rank, whatever way it came, and counts once.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/result.hpp>

#include "checkpoint/commit/messages.hpp"
#include "checkpoint/format/names.hpp"

namespace elrun::inline v0 {

/// Under which a vote is sent: who votes on which attempt to save which step under which fence.
struct VoteKey {
  CheckpointId id;
  std::uint32_t rank = 0;
  friend auto operator<=>(const VoteKey&, const VoteKey&) = default;
};
/// `s000000012000.g00000007.a01/r00003`, for a store. No other save and no other rank has the same one.
[[nodiscard]] std::string to_string(const VoteKey& key);
[[nodiscard]] std::optional<VoteKey> parse_vote_key(std::string_view text);

class VoteCount {
 public:
  VoteCount(const CheckpointId& id, std::uint32_t world) : id_{id}, by_rank_(world) {}

  enum class Counted {
    yes,
    again,  ///< This rank said the same before.
    stale,  ///< Of another save: it says nothing about this one, and may come at any time.
  };
  /// Fails where this save cannot be committed any more, naming the rank: with the rank's own failure where it refused; with `protocol` for a
  /// vote that is not of the save and the rank under which it was sent, of a rank that the world has not, or other than what the rank voted before.
  Result<Counted> add(const VoteKey& sent_as, const PartVote& vote);
  [[nodiscard]] bool is_complete() const { return count_ >= by_rank_.size(); }
  /// Ranks that have not voted, ascending.
  [[nodiscard]] std::vector<std::uint32_t> missing() const;
  /// By rank.
  [[nodiscard]] std::vector<PartVote> votes() const;

 private:
  [[nodiscard]] Failure wrong(std::uint32_t rank, std::string_view what) const;

  CheckpointId id_;
  std::vector<std::optional<PartVote>> by_rank_;
  std::size_t count_ = 0;  // of ranks that voted
};

/// "rank 3", "ranks 0, 4 to 7, 12".
[[nodiscard]] std::string ranks_for_people(const std::vector<std::uint32_t>& ascending);

}  // namespace elrun::inline v0
