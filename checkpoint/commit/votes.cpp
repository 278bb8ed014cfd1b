#include "checkpoint/commit/votes.hpp"

#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "lib/base/planted.hpp"
#include "lib/base/words.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::string_view before_rank = "/r";
constexpr std::size_t rank_digits = 5;

}  // namespace

std::string to_string(const VoteKey& key) { return fmt::format("{}{}{:0{}}", to_string(key.id), before_rank, key.rank, rank_digits); }

std::optional<VoteKey> parse_vote_key(std::string_view text) {
  const std::size_t at = text.find(before_rank);
  if (at == std::string_view::npos) return std::nullopt;
  const auto id = parse_checkpoint_id(text.substr(0, at));
  const std::string_view digits = text.substr(at + before_rank.size());
  if (!id || digits.size() != rank_digits) return std::nullopt;
  VoteKey key{*id, 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), key.rank);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return key;
}

Failure VoteCount::wrong(std::uint32_t rank, std::string_view what) const {
  return {.code = Code::protocol,
          .remedy = Remedy::abort_group,
          .what = fmt::format("checkpoint {}: rank {} {}", to_string(id_), rank, what),
          .rank = Rank{rank}};
}

Result<VoteCount::Counted> VoteCount::add(const VoteKey& sent_as, const PartVote& vote) {
  if (sent_as.id != id_ && !ELRUN_PLANTED(vote_of_another_attempt_counts)) return Counted::stale;
  const std::uint32_t rank = sent_as.rank;
  if (vote.id != sent_as.id || vote.rank != rank || rank >= by_rank_.size())
    return wrong(rank, fmt::format("voted on {} as rank {}, in a world of {}", to_string(vote.id), vote.rank, by_rank_.size()));
  if (vote.refusal) {
    Failure why = *vote.refusal;
    why.rank = Rank{rank};
    return why;
  }
  std::optional<PartVote>& counted = by_rank_[rank];
  if (counted && (counted->part_bytes != vote.part_bytes || counted->part_crc != vote.part_crc))
    return wrong(rank, "voted twice, and not the same");
  if (counted && !ELRUN_PLANTED(vote_counted_twice)) return Counted::again;
  counted = vote;
  ++count_;
  return Counted::yes;
}

std::vector<std::uint32_t> VoteCount::missing() const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < by_rank_.size(); ++rank)
    if (!by_rank_[rank]) ranks.push_back(rank);
  return ranks;
}

std::vector<PartVote> VoteCount::votes() const {
  std::vector<PartVote> votes;
  for (const auto& vote : by_rank_)
    if (vote) votes.push_back(*vote);
  return votes;
}

std::string ranks_for_people(const std::vector<std::uint32_t>& ascending) {
  std::vector<std::string> runs;
  for (std::size_t i = 0; i < ascending.size();) {
    std::size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (last == i) runs.push_back(fmt::to_string(ascending[i]));
    else runs.push_back(fmt::format("{} {} {}", ascending[i], last == i + 1 ? "and" : "to", ascending[last]));
    i = last + 1;
  }
  return fmt::format("{} {}", ascending.size() == 1 ? "rank" : "ranks", some_of(runs));
}

}  // namespace elrun::inline v0
