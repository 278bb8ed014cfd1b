#pragma once
/// \file Core: what a worker and `elrun ckptd` say to each other about a staging slot, and what the writers of a save tell each other through the
/// job's store. All of it may come from anybody of this user: it is bounded and checked.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "checkpoint/format/names.hpp"
#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// Worker to ckptd, a packet of one byte each.
enum class SlotWord : std::uint8_t {
  slot = 1,  ///< The packet carries the descriptor of this worker's slot.
  begin,     ///< The slot is being filled: its record says for what.
  sealed,    ///< Write it. An `outcome` follows.
  hurry,     ///< Training waits for the save under way: no bound on bytes per second holds any more.
  settle,    ///< The generation is over: what is under way ends soon, well or not. Then `settled` follows, once for each such word.
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
constexpr Duration save_deadline = 600s;  ///< Of one save; then the ranks whose parts are missing are named.

/// What the leader's ckptd says to the others: a value, or a failure after which it tries again under another name, or never.
struct Said {
  ByteVector value{};
  std::optional<Failure> failure{};
  bool again = false;
};
[[nodiscard]] ByteVector encode(const Said& said);
[[nodiscard]] Result<Said> decode_said(ByteSpan bytes);

/// A save of which the job's store may hold keys. One key lists them, so that whichever ckptd leads a later save finds and removes them.
struct NotedSave {
  std::uint32_t root = 0;  ///< The checksum of its root's path: a program may save one job after another, and each root has its own fences.
  FenceNumber fence = 0;
  std::uint64_t step = 0;
  std::uint32_t world = 0;
  friend bool operator==(const NotedSave&, const NotedSave&) = default;
};
/// Keys of one save in the job's store. They outlive generations, and no later save has the same ones: each root has its own fences, a fence is claimed once, and
/// a step is saved once under it.
class SaveKeys {
 public:
  explicit SaveKeys(const NotedSave& save) : root_{save.root}, fence_{save.fence}, step_{save.step} {}
  [[nodiscard]] std::string ticket(unsigned attempt) const;
  [[nodiscard]] std::string vote(unsigned attempt, std::uint32_t rank) const;
  [[nodiscard]] std::string outcome(unsigned attempt) const;
  /// The part of this rank will never come, and why (a PartVote).
  [[nodiscard]] std::string gone(std::uint32_t rank) const;
  /// What these keys begin with: all of the save, those of one attempt, all `gone`.
  [[nodiscard]] std::string all() const;
  [[nodiscard]] std::string all_of(unsigned attempt) const;
  [[nodiscard]] std::string all_gone() const;

 private:
  std::uint32_t root_;
  FenceNumber fence_;
  std::uint64_t step_;
};
constexpr unsigned save_tries_max = 3;  ///< Of one save by ckptd, each under a name of its own.

/// A rank had promised to begin a save, in this generation, and will not: nobody knows which save that would have been. One key holds the newest for the whole job.
/// Its generation ends with it, so one is enough for all who wait.
struct BrokenPromise {
  Generation generation{};
  std::uint32_t rank = 0;
  Failure why{};
};
[[nodiscard]] ByteVector encode(const BrokenPromise& broken);
[[nodiscard]] Result<BrokenPromise> decode_broken_promise(ByteSpan bytes);
constexpr std::string_view broken_promise_key = "job/elrun/save/promised";

/// As they were noted.
[[nodiscard]] ByteVector encode(const std::vector<NotedSave>& saves);
[[nodiscard]] Result<std::vector<NotedSave>> decode_noted_saves(ByteSpan bytes);
constexpr std::string_view noted_saves_key = "job/elrun/save/noted";
constexpr std::size_t noted_saves_max = 64;

}  // namespace elrun::inline v0
