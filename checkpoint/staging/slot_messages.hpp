#pragma once
/// \file Core: what a worker and `elrun ckptd` say to each other about a staging slot, and what the writers of a save tell each other through the
/// job's store. All of it may come from anybody of this user: it is bounded and checked.

#include <cstdint>
#include <optional>
#include <string>

#include <elrun/failure.hpp>
#include <elrun/result.hpp>

#include "checkpoint/format/names.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// Worker to ckptd, a packet of one byte each.
enum class SlotWord : std::uint8_t {
  slot = 1,  ///< The packet carries the descriptor of this worker's slot.
  begin,     ///< The slot is being filled: its record says for what.
  sealed,    ///< Write it. An `outcome` follows.
  hurry,     ///< Training waits for the save under way: no bound on bytes per second holds any more.
  settle,    ///< The generation is over: what is under way ends soon, well or not. Then `settled` follows.
};
[[nodiscard]] std::optional<SlotWord> parse_slot_word(ByteSpan packet);

/// How a save ended: it is committed and acknowledged, or why not.
struct SaveOutcome {
  FenceNumber fence = 0;
  std::uint64_t step = 0;
  std::string acknowledgement{};  ///< Of a success.
  std::optional<Failure> failure{};
  friend bool operator==(const SaveOutcome& a, const SaveOutcome& b) {
    return a.fence == b.fence && a.step == b.step && a.acknowledgement == b.acknowledgement &&
           a.failure.has_value() == b.failure.has_value();
  }
};
/// Ckptd to worker: an outcome, or nothing inside for `settled`.
[[nodiscard]] ByteVector encode(const std::optional<SaveOutcome>& outcome);
[[nodiscard]] Result<std::optional<SaveOutcome>> decode_save_outcome(ByteSpan packet);
constexpr std::size_t outcome_packet_max = 65536;

/// What the leader's ckptd says to the others: a value, or a failure after which it tries again under another name, or never.
struct Said {
  ByteVector value{};
  std::optional<Failure> failure{};
  bool again = false;
};
[[nodiscard]] ByteVector encode(const Said& said);
[[nodiscard]] Result<Said> decode_said(ByteSpan bytes);

/// Keys of one save in the job's store. They outlive generations, and no later save has the same ones: a fence is claimed once, and a step is
/// saved once under it.
class SaveKeys {
 public:
  SaveKeys(FenceNumber fence, std::uint64_t step) : fence_{fence}, step_{step} {}
  [[nodiscard]] std::string ticket(unsigned attempt) const;
  [[nodiscard]] std::string vote(unsigned attempt, std::uint32_t rank) const;
  [[nodiscard]] std::string outcome(unsigned attempt) const;
  /// The part of this rank will never come, and why (a PartVote).
  [[nodiscard]] std::string gone(std::uint32_t rank) const;
  /// Of all keys `gone`.
  [[nodiscard]] std::string all_gone() const;
  /// The same of a rank that had promised to begin, in this generation: nobody knows of which save.
  [[nodiscard]] static std::string broken_promise(const Generation& generation, std::uint32_t rank);
  [[nodiscard]] static std::string all_broken_promises(const Generation& generation);

 private:
  [[nodiscard]] std::string prefix() const;
  FenceNumber fence_;
  std::uint64_t step_;
};
constexpr unsigned save_tries_max = 3;  ///< Of one save by ckptd, each under a name of its own.

}  // namespace elrun::inline v0
