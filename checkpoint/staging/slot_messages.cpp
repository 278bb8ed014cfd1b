#include "checkpoint/staging/slot_messages.hpp"

#include <fmt/format.h>

#include "checkpoint/commit/messages.hpp"
#include "checkpoint/format/records.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::size_t said_value_max = 65536;

/// As a vote says no: one codec for failures.
void put_failure(ByteWriter& out, const Failure& why) {
  out.put_bytes(encode(PartVote{.rank = why.rank.value_or(Rank{0}).value(), .refusal = why}));
  out.put(std::uint8_t{why.rank.has_value()});
}

std::optional<Failure> get_failure(ByteReader& in) {
  auto vote = decode_part_vote(in.get_bytes(part_vote_bytes_max));
  const bool has_rank = in.get<std::uint8_t>() != 0;
  if (!vote.ok() || !vote->refusal) {
    in.mark_broken();
    return {};
  }
  if (!has_rank) vote->refusal->rank.reset();
  return std::move(vote->refusal);
}

}  // namespace

std::optional<SlotWord> parse_slot_word(ByteSpan packet) {
  if (packet.size() != 1) return {};
  const auto word = static_cast<std::uint8_t>(packet[0]);
  if (word < static_cast<std::uint8_t>(SlotWord::slot) || word > static_cast<std::uint8_t>(SlotWord::settle)) return {};
  return static_cast<SlotWord>(word);
}

ByteVector encode(const std::optional<SaveOutcome>& outcome) {
  ByteWriter out;
  out.put(std::uint8_t{outcome.has_value()});
  if (!outcome) return out.take();
  out.put(outcome->fence), out.put(outcome->step);
  out.put(std::uint8_t{outcome->failure.has_value()});
  if (outcome->failure) put_failure(out, *outcome->failure);
  else out.put_text(outcome->acknowledgement);
  return out.take();
}

Result<std::optional<SaveOutcome>> decode_save_outcome(ByteSpan packet) {
  ByteReader in{packet};
  std::optional<SaveOutcome> outcome;
  if (in.get<std::uint8_t>() != 0) {
    outcome.emplace();
    outcome->fence = in.get<FenceNumber>(), outcome->step = in.get<std::uint64_t>();
    if (in.get<std::uint8_t>() != 0) outcome->failure = get_failure(in);
    else outcome->acknowledgement = in.get_text(acknowledgement_bytes_max.value());
  }
  ELRUN_TRY(in.finish("the outcome of a save"));
  return outcome;
}

ByteVector encode(const Said& said) {
  ByteWriter out;
  out.put(std::uint8_t{said.failure.has_value()});
  if (!said.failure) return out.put_bytes(said.value), out.take();
  out.put(std::uint8_t{said.again});
  put_failure(out, *said.failure);
  return out.take();
}

Result<Said> decode_said(ByteSpan bytes) {
  ByteReader in{bytes};
  Said said;
  if (in.get<std::uint8_t>() == 0) {
    const ByteSpan value = in.get_bytes(said_value_max);
    said.value.assign(value.begin(), value.end());
  } else {
    said.again = in.get<std::uint8_t>() != 0;
    said.failure = get_failure(in);
  }
  ELRUN_TRY(in.finish("what the leader says of a save"));
  return said;
}

std::string SaveKeys::prefix() const { return fmt::format("job/elrun/save/g{:08}/s{:012}/", fence_, step_); }
std::string SaveKeys::ticket(unsigned attempt) const { return fmt::format("{}t{}/ticket", prefix(), attempt); }
std::string SaveKeys::vote(unsigned attempt, std::uint32_t rank) const { return fmt::format("{}t{}/vote/{:05}", prefix(), attempt, rank); }
std::string SaveKeys::outcome(unsigned attempt) const { return fmt::format("{}t{}/outcome", prefix(), attempt); }
std::string SaveKeys::gone(std::uint32_t rank) const { return fmt::format("{}{:05}", all_gone(), rank); }
std::string SaveKeys::all_gone() const { return prefix() + "gone/"; }
std::string SaveKeys::broken_promise(const Generation& generation, std::uint32_t rank) {
  return fmt::format("{}{:05}", all_broken_promises(generation), rank);
}
std::string SaveKeys::all_broken_promises(const Generation& generation) {
  return fmt::format("job/elrun/save/promised/{}/", to_string(generation));
}

}  // namespace elrun::inline v0
