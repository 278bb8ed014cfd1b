#pragma once
/// \file GenerationChange: from one generation to the next, in the same process. All members go through it together, newcomers from restore(),
/// the others from next_step(), from apply() when they had voted, or from an evaluation between two steps: settle (what became of the step
/// under way), then share (who lacks parameters and moments gets them from those who have them, or all from a checkpoint), then, once
/// all who were there before have come to next_step(), host state. Parameters and moments may also come after that, while the others compute (`StateTransfer::beside`). GenerationRecovery says how far this member has come.

#include <string>
#include <vector>

#include "lib/job/evaluate/evaluation_pass.hpp"
#include "lib/job/job_parts.hpp"
#include "lib/job/world_setup.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread. A world that ends leaves each call by `Revoked` (revoked.hpp), and the next call goes on from there.
class GenerationChange {
 public:
  /// All outlive it.
  GenerationChange(JobParts& job, WorldSetup& setup, EvaluationPass& pass) : job_{job}, setup_{setup}, pass_{pass} {}

  /// Waits for this process's place in the next generation. Leaves the process where there is none.
  void rejoin();
  /// Until this member is ready for a step of the generation at hand, whichever that is. Throws BeginAgain.
  void enter();
  /// Until all members have parameters and moments. Throws BeginAgain.
  void meet();
  /// All members know whether one of them is in an evaluation. State that comes beside slots sets out, unless it has.
  void begin_transfer_beside();
  /// Before a step is handed out.
  void begin_next_step();
  /// Learns what became of the step for which members voted in the generation before, and applies it if it was decided.
  void settle();

 private:
  [[nodiscard]] MemberStatus status() const;
  SavedCheckpoint saved_by_others();
  [[nodiscard]] Sums sums() const;
  [[nodiscard]] Saver saver() const;
  [[nodiscard]] std::vector<Agreement> agreements() const;
  void drop_step();
  void share();
  void tell_of_copies();
  void receive_state();
  [[nodiscard]] std::uint64_t state_bytes() const;
  [[nodiscard]] TransferFacts transfer_facts(const ShardMap& shards) const;
  void take_position_of_giver();
  void go_on_from_memory(const std::string& lost);
  void restore_moments_beside();
  void load_or_begin(const std::string& lost);
  void open_saves(JobSaves::Then then);
  void go_on_together();
  [[nodiscard]] ByteVector host_state_of_giver();
  void renew_frozen();
  void take_host_state(const ByteVector& encoded);

  JobParts& job_;
  WorldSetup& setup_;
  EvaluationPass& pass_;
};

}  // namespace elrun::inline v0
