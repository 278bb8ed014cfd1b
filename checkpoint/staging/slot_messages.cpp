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

std::string SaveKeys::all() const { return fmt::format("job/elrun/save/r{:08x}/g{:08}/s{:012}/", root_, fence_, step_); }
std::string SaveKeys::all_of(unsigned attempt) const { return fmt::format("{}t{}/", all(), attempt); }
std::string SaveKeys::ticket(unsigned attempt) const { return all_of(attempt) + "ticket"; }
std::string SaveKeys::vote(unsigned attempt, std::uint32_t rank) const { return fmt::format("{}vote/{:05}", all_of(attempt), rank); }
std::string SaveKeys::outcome(unsigned attempt) const { return all_of(attempt) + "outcome"; }
std::string SaveKeys::gone(std::uint32_t rank) const { return fmt::format("{}{:05}", all_gone(), rank); }
std::string SaveKeys::all_gone() const { return all() + "gone/"; }

ByteVector encode(const BrokenPromise& broken) {
  ByteWriter out;
  out.put(broken.generation.number);
  for (const std::uint64_t word : broken.generation.lineage.bits) out.put(word);
  out.put(broken.rank);
  put_failure(out, broken.why);
  return out.take();
}

Result<BrokenPromise> decode_broken_promise(ByteSpan bytes) {
  ByteReader in{bytes};
  BrokenPromise broken{.generation = {.number = in.get<std::uint64_t>()}};
  for (std::uint64_t& word : broken.generation.lineage.bits) word = in.get<std::uint64_t>();
  broken.rank = in.get<std::uint32_t>();
  if (auto why = get_failure(in)) broken.why = *std::move(why);
  ELRUN_TRY(in.finish("the word that a part of a save was never begun"));
  return broken;
}

ByteVector encode(const std::vector<NotedSave>& saves) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(saves.size()));
  for (const NotedSave& s : saves) out.put(s.root), out.put(s.fence), out.put(s.step), out.put(s.world);
  return out.take();
}

Result<std::vector<NotedSave>> decode_noted_saves(ByteSpan bytes) {
  ByteReader in{bytes};
  std::vector<NotedSave> saves;
  const auto count = in.get<std::uint32_t>();
  if (count > noted_saves_max) in.mark_broken();
  for (std::uint32_t i = 0; i < count && !in.broken(); ++i) {
    NotedSave& save = saves.emplace_back();
    save.root = in.get<std::uint32_t>(), save.fence = in.get<FenceNumber>(), save.step = in.get<std::uint64_t>(),
    save.world = in.get<std::uint32_t>();
    if (save.world > world_max) in.mark_broken();
  }
  ELRUN_TRY(in.finish("the list of saves with keys in the job's store"));
  return saves;
}

}  // namespace elrun::inline v0
