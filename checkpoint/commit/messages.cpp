#include "checkpoint/commit/messages.hpp"

#include <algorithm>
#include <utility>

namespace elrun::inline v0 {
namespace {

constexpr std::size_t why_max = 256;

}  // namespace

ByteVector encode(const Start& start) {
  ByteWriter out;
  out.put(start.fence);
  out.put_text(start.choice ? to_string(*start.choice) : "");
  out.put(start.manifest_crc);
  out.put_text(std::string_view{start.why}.substr(0, why_max));
  out.put(start.steps_again);
  const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(start.notes.size(), 64));
  out.put(count);
  for (std::uint32_t i = 0; i < count; ++i) out.put_text(std::string_view{start.notes[i]}.substr(0, 4096));
  return out.take();
}

Result<Start> decode_start(ByteSpan bytes) {
  ByteReader in{bytes};
  Start start{.fence = in.get<FenceNumber>()};
  const std::string name = in.get_text(64);
  start.choice = parse_checkpoint_id(name);
  if (!name.empty() && !start.choice) in.mark_broken();
  start.manifest_crc = in.get<std::uint32_t>();
  start.why = in.get_text(why_max);
  start.steps_again = in.get<std::uint64_t>();
  const auto count = in.get<std::uint32_t>();
  if (count > 64) in.mark_broken();
  for (std::uint32_t i = 0; i < count && !in.broken(); ++i) start.notes.push_back(in.get_text(4096));
  ELRUN_TRY(in.finish("the choice of a checkpoint"));
  return start;
}

ByteVector encode(const SaveTicket& ticket) {
  ByteWriter out;
  out.put_text(to_string(ticket.id));
  out.put_text(ticket.root);
  return out.take();
}

Result<SaveTicket> decode_save_ticket(ByteSpan bytes) {
  ByteReader in{bytes};
  const auto id = parse_checkpoint_id(in.get_text(64));
  if (!id) in.mark_broken();
  SaveTicket ticket{id.value_or(CheckpointId{}), in.get_text(32)};
  ELRUN_TRY(in.finish("the ticket of a save"));
  return ticket;
}

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

}  // namespace elrun::inline v0
