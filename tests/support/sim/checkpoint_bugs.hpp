#pragma once
/// \file The known bugs that the simulator of checkpoints can show, one at a time. Each has one line in a copy of the product's code.

#include <array>
#include <stdexcept>
#include <string_view>

#define ELRUN_SIM_CHECKPOINT_BUGS(bug)                                                                                                     \
  bug(quarantine_ignored, "a checkpoint that was found damaged is gone on from again")                                                     \
      bug(own_fence_only, "a save looks for its own fence, and for no newer one")                                                          \
          bug(zombies_accepted, "whatever has a COMMIT is on the timeline")                                                                \
              bug(checksum_of_the_manifest_skipped, "a manifest need not be the one that COMMIT vouches for")                              \
                  bug(vote_counted_twice, "a vote that comes again counts again")                                                          \
                      bug(sweep_of_the_known, "what was acknowledged and lost its COMMIT is removed as a leftover")                        \
                          bug(vote_of_another_attempt_counts, "a vote on another attempt of a save counts for this one")                   \
                              bug(late_answer_counts, "the answer to an earlier question is taken for that to the newest") bug(            \
                                  acknowledged_without_a_second_look, "a save is acknowledged without a look at the fences after COMMIT")  \
                                  bug(removed_after_commit, "a save that fails after COMMIT removes what it wrote") bug(                   \
                                      older_generation_claims, "a leader that was frozen claims a fence above that of a later generation") \
                                      bug(failed_look_counts, "a shard that the leader cannot read before its COMMIT counts as written")   \
                                          bug(unreadable_passed_over, "a checkpoint that cannot be read is passed over for an older one")

namespace elrun::checkpoint_sim {

enum class Bug {
  none,
#define ELRUN_SIM_BUG_NAME(name, what) name,
  ELRUN_SIM_CHECKPOINT_BUGS(ELRUN_SIM_BUG_NAME)
#undef ELRUN_SIM_BUG_NAME
};

struct BugText {
  Bug bug;
  std::string_view name, what;
};
inline constexpr auto bug_texts = std::to_array<BugText>({
#define ELRUN_SIM_BUG_TEXT(name, what) {Bug::name, #name, what},
    ELRUN_SIM_CHECKPOINT_BUGS(ELRUN_SIM_BUG_TEXT)
#undef ELRUN_SIM_BUG_TEXT
});

inline thread_local Bug planted_bug = Bug::none;

/// An assertion of the product that did not hold: here a finding.
struct AssertionFailed : std::logic_error {
  using std::logic_error::logic_error;
};
[[noreturn]] inline void assertion_failed(const char* expression, const char*, int) { throw AssertionFailed{expression}; }

}  // namespace elrun::checkpoint_sim

#define ELRUN_PLANTED(name) (::elrun::checkpoint_sim::planted_bug == ::elrun::checkpoint_sim::Bug::name)
#define ELRUN_COMPARED_IN_SIMULATION
#define ELRUN_ASSERTION_FAILED ::elrun::checkpoint_sim::assertion_failed
