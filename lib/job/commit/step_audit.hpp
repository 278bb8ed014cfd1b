#pragma once
/// \file StepAudit: one step's audit on one rank. The audited slot is handed out on other ranks too, before their own slots, for then all
/// buffers are free. What comes out is hashed and forgotten. The hashes travel with the votes, so every rank judges the same numbers, and a
/// step whose audit fails is decided by nobody. Core, called by the job's thread.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <elrun/failure.hpp>

#include "lib/job/commit/audit.hpp"

namespace elrun::inline v0 {

/// The ranks that computed the audited slot came to different gradients.
struct AuditVerdict {
  std::string what;
  std::uint32_t culprit = 0;   ///< The first rank that differs.
  bool outvoted = false;       ///< Most others agree with each other; else nobody can tell who is wrong.
  std::uint32_t reporter = 0;  ///< The rank that logs it for all: one that did not differ.
};

class StepAudit {
 public:
  StepAudit() = default;
  /// Of a step before: nothing is chosen any more.
  void begin_step() { *this = StepAudit{refused_}; }
  /// True the first time: nothing can be audited in this world, and nobody was told yet.
  [[nodiscard]] bool refuse() { return !std::exchange(refused_, true); }
  /// Chooses the slot, if there is one in this step. Once per step, before its slots.
  void choose(std::uint64_t seed, std::uint64_t step, double probability, const std::vector<std::vector<std::uint32_t>>& slots_by_rank,
              std::uint32_t rank);
  [[nodiscard]] bool is_chosen() const { return audit_.has_value(); }
  /// This rank has to run another rank's slot, and has not begun.
  [[nodiscard]] bool is_due() const { return due_; }
  /// The slot to run now: until `end_slot` this rank runs it for the audit alone. Nothing: none is due.
  [[nodiscard]] std::optional<std::uint32_t> take_slot();
  /// The slot that is open is another rank's.
  [[nodiscard]] bool is_running() const { return running_; }
  /// `slot` is the audited one.
  [[nodiscard]] bool audits(std::uint32_t slot) const { return audit_ && audit_->slot == slot; }
  /// It ended, with a gradient of that hash.
  void note(std::uint64_t gradient, float loss, std::uint64_t tokens);
  /// True: the slot that ended was run for the audit alone, and counts for nothing else.
  [[nodiscard]] bool end_slot();

  [[nodiscard]] double probability() const { return probability_; }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  /// `hashes`: by rank, as they came with the votes. Nothing: all who computed the slot agree, or there is no audit.
  [[nodiscard]] std::optional<AuditVerdict> judge(std::uint64_t step, std::span<const std::uint64_t> hashes) const;

 private:
  explicit StepAudit(bool refused) : refused_{refused} {}
  bool refused_ = false;  // over all steps
  double probability_ = 0;
  std::optional<Audit> audit_;
  bool due_ = false, running_ = false;
  std::uint64_t hash_ = 0;  // of the audited slot, where this rank computed it
};

}  // namespace elrun::inline v0
