#pragma once
/// \file VoteExchange: the one exchange in which all ranks tell each other their votes for a step, with losses, tokens and their partial
/// sums of the global norm. It carries values; StepCommit (commit.hpp) decides.
///
/// Called by the job's thread. Its memory follows from the world and is made once for each: `exchange` allocates nothing.
/// Votes of two versions of libelrun never meet, for all workers of a job run one program. So their format may change.

#include <cstdint>
#include <span>
#include <vector>

#include "lib/base/bytes.hpp"
#include "lib/job/commit/commit.hpp"
#include "lib/job/commit/update_values.hpp"
#include "lib/job/state/delivery.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// What one rank says with its vote.
struct VoteMessage {
  Vote vote;
  bool leaves = false;  ///< Its node leaves the job, and its agent does not know yet that the job may go on without it.
  bool stops = false;   ///< Its program asked for the job's end.
  bool saves = false;   ///< After this step is a save. The leader's counts, see save_interval.hpp.
  std::uint64_t audit_hash = 0;
  double audit_probability = 0;
  UpdateReport update;
  std::uint64_t parameters = 0;  ///< Their hash, where they are compared with the votes for this step.
  Duration own{};                ///< See TimesSpent.
};

class VoteExchange {
 public:
  VoteExchange() = default;
  /// `slots_by_rank`: the slots that each rank runs, which are 0 .. `slots` - 1 together. `norm_nodes`: by rank, how many it brings.
  VoteExchange(std::vector<std::vector<std::uint32_t>> slots_by_rank, std::uint64_t slots, std::span<const std::size_t> norm_nodes,
               std::uint32_t rank);

  /// Of this rank's `i`-th slot.
  void set_slot(std::size_t i, float loss, std::uint64_t tokens);
  /// Where it came later than the slot's end.
  void set_loss(std::size_t i, float loss) { my_losses_[i] = loss; }
  /// This rank's nodes, to be filled before `exchange`.
  [[nodiscard]] std::span<float> norm_nodes() { return norm_nodes_[rank_]; }

  /// Success: all below is there, of all ranks.
  Result<void> exchange(JobWorld& world, const VoteMessage& mine);
  [[nodiscard]] VoteMessage of_rank(std::uint32_t rank) const;
  /// The sum of all slots' losses, by the canonical tree.
  [[nodiscard]] float sum_of_losses() const;
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  /// By rank.
  [[nodiscard]] const std::vector<std::span<const float>>& all_norm_nodes() const { return norm_views_; }

 private:
  void write(const VoteMessage& mine);
  void read(std::uint32_t rank);
  std::vector<std::vector<std::uint32_t>> slots_;  // by rank
  std::uint32_t rank_ = 0;
  std::vector<ByteVector> votes_;  // by rank
  Delivery exchange_;
  std::vector<float> my_losses_;  // of my slots
  std::vector<std::uint64_t> my_tokens_;
  std::vector<float> losses_;                   // of all slots, by number
  std::uint64_t tokens_ = 0;                    // of all slots
  std::vector<std::vector<float>> norm_nodes_;  // by rank
  std::vector<std::span<const float>> norm_views_;
};

}  // namespace elrun::inline v0
