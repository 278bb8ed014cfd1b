#include "checkpoint/save_round.hpp"

#include <utility>

#include <fmt/format.h>

namespace elrun::inline v0 {

ByteVector encode(const PartVote& vote) {
  ByteWriter out;
  out.put_text(to_string(vote.id));
  out.put(vote.rank);
  out.put(vote.part_bytes);
  out.put(vote.part_crc);
  out.put(std::uint8_t{vote.refusal.has_value()});
  if (vote.refusal) {
    out.put(static_cast<std::uint8_t>(vote.refusal->code));
    out.put(static_cast<std::uint8_t>(vote.refusal->remedy));
    out.put_text(std::string_view{vote.refusal->what}.substr(0, 4096));
    out.put_text(std::string_view{vote.refusal->node}.substr(0, 256));
  }
  return out.take();
}

Result<PartVote> decode_part_vote(ByteSpan bytes) {
  ByteReader in{bytes};
  PartVote vote;
  const auto id = parse_checkpoint_id(in.get_text(64));
  if (!id) in.mark_broken();
  vote.id = id.value_or(CheckpointId{});
  vote.rank = in.get<std::uint32_t>();
  vote.part_bytes = in.get<std::uint64_t>();
  vote.part_crc = in.get<std::uint32_t>();
  if (const auto no = in.get<std::uint8_t>(); no == 1) {
    const auto code = in.get<std::uint8_t>(), remedy = in.get<std::uint8_t>();
    if (code > static_cast<std::uint8_t>(Code::internal) || remedy > static_cast<std::uint8_t>(Remedy::exit_process)) in.mark_broken();
    vote.refusal = Failure{.code = static_cast<Code>(code), .remedy = static_cast<Remedy>(remedy), .what = in.get_text(4096)};
    vote.refusal->node = in.get_text(256);
    vote.refusal->rank = Rank{vote.rank};
  } else if (no != 0) {
    in.mark_broken();
  }
  ELRUN_TRY(in.finish("a vote on a checkpoint"));
  return vote;
}

SaveRound begin_round(CheckpointId id, std::uint32_t world, Deadline deadline) {
  SaveRound round{id, world, deadline};
  round.votes.resize(world);
  return round;
}

SaveRound with_vote(SaveRound round, PartVote vote) {
  if (vote.id != round.id || vote.rank >= round.world) return round;  // a late vote of another save, or of another world
  std::optional<PartVote>& seat = round.votes[vote.rank];
  if (seat && !round.ended &&
      (seat->part_crc != vote.part_crc || seat->part_bytes != vote.part_bytes || seat->refusal.has_value() != vote.refusal.has_value()))
    round.ended = Failure{.code = Code::protocol,
                          .remedy = Remedy::abort_group,
                          .what = fmt::format("voted twice and differently on {}", to_string(round.id)),
                          .rank = Rank{vote.rank}};
  if (!seat) seat = std::move(vote);
  return round;
}

SaveRound with_owner_lost(SaveRound round, Failure why) {
  if (!round.ended) round.ended = std::move(why);
  return round;
}

SaveVerdict verdict(const SaveRound& round, Instant now) {
  if (round.ended) return AbandonSave{*round.ended};
  std::vector<PartVote> votes;
  std::string missing;
  std::size_t missing_count = 0;
  for (std::uint32_t rank = 0; rank < round.world; ++rank) {
    const std::optional<PartVote>& vote = round.votes[rank];
    if (vote && vote->refusal) {
      Failure why = *vote->refusal;
      why.rank = Rank{rank};
      return AbandonSave{std::move(why)};
    }
    if (vote) votes.push_back(*vote);
    else if (++missing_count <= 8) missing += fmt::format("{}{}", missing_count > 1 ? ", " : "", rank);
  }
  if (missing_count == 0) return CommitSave{std::move(votes)};
  if (missing_count > 8) missing += fmt::format(" and {} more", missing_count - 8);
  const std::string why =
      fmt::format("{} of {} ranks have voted on checkpoint {}; missing: {}", votes.size(), round.world, to_string(round.id), missing);
  if (round.deadline.passed(now)) return AbandonSave{{.code = Code::deadline_passed, .remedy = Remedy::retry, .what = why}};
  return WaitForVotes{round.deadline.at, why};
}

}  // namespace elrun::inline v0
