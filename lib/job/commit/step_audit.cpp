#include "lib/job/commit/step_audit.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "kernels/state_hash.hpp"
#include "lib/job/commit/verdict.hpp"

namespace elrun::inline v0 {

void StepAudit::choose(std::uint64_t seed, std::uint64_t step, double probability,
                       const std::vector<std::vector<std::uint32_t>>& slots_by_rank, std::uint32_t rank) {
  probability_ = probability;
  audit_ = choose_audit(seed, step, probability, slots_by_rank);
  due_ = audit_ && std::ranges::find(audit_->auditors, rank) != audit_->auditors.end();
}

std::optional<std::uint32_t> StepAudit::take_slot() {
  running_ = std::exchange(due_, false);
  return running_ ? std::optional{audit_->slot} : std::nullopt;
}

/// Nothing in the hash depends on who computes the slot.
void StepAudit::note(std::uint64_t gradient, float loss, std::uint64_t tokens) {
  hash_ = gradient + Mix{}(std::bit_cast<std::uint32_t>(loss), salt_of("loss")) + Mix{}(tokens, salt_of("tokens"));
}

bool StepAudit::end_slot() { return std::exchange(running_, false); }

std::optional<AuditVerdict> StepAudit::judge(std::uint64_t step, std::span<const std::uint64_t> by_rank) const {
  if (!audit_) return std::nullopt;
  std::vector<std::uint32_t> ranks{audit_->owner};
  ranks.insert(ranks.end(), audit_->auditors.begin(), audit_->auditors.end());
  std::vector<std::uint64_t> hashes;
  for (const std::uint32_t r : ranks) hashes.push_back(by_rank[r]);
  const auto wrong = find_mismatch(hashes);
  if (!wrong) return std::nullopt;
  AuditVerdict out{.what = fmt::format("audit of slot {} in step {}:", audit_->slot, step),
                   .culprit = ranks[wrong->index],
                   .outvoted = wrong->outvoted,
                   .reporter = ranks[wrong->index == 0 ? 1 : 0]};
  for (std::size_t i = 0; i < ranks.size(); ++i) out.what += fmt::format(" rank {} has gradient {:016x},", ranks[i], hashes[i]);
  out.what += out.outvoted ? fmt::format(" so rank {} computed it wrong: its processor or memory is not to be trusted", out.culprit)
                           : " and nobody can tell which is right: a processor or memory is not to be trusted, or the program computes "
                             "something else every time";
  return out;
}

}  // namespace elrun::inline v0
