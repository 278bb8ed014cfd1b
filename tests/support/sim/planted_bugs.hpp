#pragma once
/// \file The known bugs that the simulator's copy of the cores can show, one at a time. Each has one line in a core; each
/// must be found by a checker. Those that begin with `torchrun_` are torchrun's, re-created.

#include <array>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

#define ELRUN_SIM_BUGS(bug)                                                                                                                                        \
  bug(torchrun_d1_replacement_gets_no_address, "D1: whoever joins a running job learns no master address") bug(                                                    \
      torchrun_d2_split_brain,                                                                                                                                     \
      "D2: members of one generation are told different masters") bug(torchrun_d3_stale_keys,                                                                      \
                                                                      "D3: keys of a generation outlive it, and the next one reads them")                          \
      bug(torchrun_d5_store_loss_kills_workers, "D5: the loss of the coordinator's line ends the workers") bug(                                                    \
          torchrun_d6_lost_node_unnoticed, "D6: the silence of a node means nothing") bug(torchrun_d14_spare_fails,                                                \
                                                                                          "D14: a spare fails when the job succeeds")                              \
          bug(torchrun_d18_others_go_on, "D18: a job that failed ends on the node where it failed, and runs on elsewhere") bug(                                    \
              forms_before_acknowledged, "the next generation begins while a member may still act for the last one")                                               \
              bug(acknowledges_before_the_end, "a node acknowledges the end of a generation while its workers still run") bug(                                     \
                  generation_number_reused, "a generation that was revoked gives its number to the next one")                                                      \
                  bug(floor_not_raised, "a fresh coordinator begins below the generations that its nodes have heard of") bug(                                      \
                      oversubscription_is_an_error,                                                                                                                \
                      "a node that finds the world full is refused") bug(spare_never_used, "a spare stays one when a member is lost")                              \
                      bug(base_ranks_overlap, "two nodes of one world have ranks in common") bug(                                                                  \
                          fresh_coordinator_ends_what_runs, "a fresh coordinator ends the generation that its nodes are running")                                  \
                          bug(replaced_incarnation_returns, "an incarnation that was replaced is let in again and throws its successor out") bug(                  \
                              no_grace_to_reconnect, "a broken stream is a lost node, at once")                                                                    \
                              bug(done_is_not_reported_again, "that the workers are done is lost with the stream on which it was said") bug(                       \
                                  store_serves_stale_generation,                                                                                                   \
                                  "the store serves calls of a generation that is over") bug(barrier_opens_early,                                                  \
                                                                                             "a barrier opens with one caller missing")                            \
                                  bug(add_repeated_after_reconnect, "an add whose answer was lost is sent again") bug(                                             \
                                      waiter_not_woken, "a caller that waits for a key sleeps on when the key appears")                                            \
                                      bug(forgotten_caller_counts, "a caller that is gone still counts in a barrier") bug(                                         \
                                          coordinator_blames_nodes_for_its_nap,                                                                                    \
                                          "a coordinator that was paused takes its own silence for that of its nodes")                                             \
                                          bug(fresh_store_is_empty, "the store of a fresh coordinator lacks what was put there before") bug(                       \
                                              kill_deadline_forgotten, "a worker that does not end when asked is waited for without end")                          \
                                              bug(others_are_not_waited_for,                                                                                       \
                                                  "a fresh coordinator that misses the node of the one before waits for no other node either")                     \
                                                  bug(stepped_down_is_not_waited_for,                                                                              \
                                                      "an elected coordinator that steps down counts as lost with its node")                                       \
                                                      bug(verdict_is_not_confirmed,                                                                                \
                                                          "a stream that ends after the verdict counts as one on which it was read")                               \
                                                          bug(staying_is_not_acknowledged,                                                                         \
                                                              "a node acknowledges the end of a generation before a worker that stays has")                        \
                                                              bug(coming_is_not_waited_for,                                                                        \
                                                                  "a worker that is coming is told a place in a world that counts without it")                     \
                                                                  bug(ready_is_forgotten,                                                                          \
                                                                      "that a worker is ready is forgotten when it says so while its node has no generation")      \
                                                                      bug(bad_node_ends_the_job,                                                                   \
                                                                          "a node whose workers die before their session uses up the restarts of the job")         \
                                                                          bug(stuck_start_is_waited_for,                                                           \
                                                                              "a node whose workers never join the world is waited for without end")               \
                                                                              bug(late_guard_is_believed,                                                          \
                                                                                  "what a guard says of an agent that was replaced costs its successor its place") \
                                                                                  bug(newcomers_are_waited_for,                                                    \
                                                                                      "a newcomer gets its place before its workers are started, and the others wait for them")

// Of the step commit, which only workers with real Jobs have.
#define ELRUN_SIM_JOB_BUGS(bug)                                                                                                          \
  bug(own_vote_decides, "a step counts as decided once a member has voted for it, not when it has heard all votes")                      \
      bug(settle_forgets_who_voted, "of a step that is decided, who voted for it and had not applied it does not apply it")              \
          bug(voted_step_counts_unapplied, "a member that voted counts a decided step as applied, and does not apply it")                \
              bug(applies_with_its_last_decision, "a member that voted applies a decided step with the norm of the one before")          \
                  bug(state_from_one_behind, "the state is shared by a member that lacks the last decided step")                         \
                      bug(host_state_stays, "host state is not put back when a step is done again") bug(                                 \
                          samples_by_generation, "samples are drawn by the number of the generation instead of the step's")              \
                          bug(parameters_half_gathered, "parameters count as gathered although the exchange failed") bug(                \
                              old_checkpoint_goes_early,                                                                                 \
                              "an in-memory checkpoint is given up before all members have their parts of the next one")                 \
                              bug(checkpoint_counts_before_it_came,                                                                      \
                                  "a member counts an in-memory checkpoint as held whose parts are still on their way to it")            \
                                  bug(moments_count_before_they_came,                                                                    \
                                      "a member counts moments of an in-memory checkpoint as its own that are still on their way to it") \
                                      bug(parameters_of_another_step_stay,                                                               \
                                          "who goes back to an in-memory checkpoint of an older step keeps its parameters")              \
                                          bug(state_counts_before_it_came,                                                               \
                                              "a newcomer counts state as its own that is still on its way to it")

// Of the same, and found where nodes are cut from each other: one comes back with a state that the others have not.
#define ELRUN_SIM_JOB_CUT_BUGS(bug)                                                                                  \
  bug(settle_takes_the_newest, "settle takes the newest step, whether all parts of its state are there or not") bug( \
      spares_look_for_no_checkpoint, "members that others trained without go on with their state, and do not look for a newer checkpoint")

// Of saves that go on while workers train.
#define ELRUN_SIM_JOB_SAVE_BUGS(bug)                                                                              \
  bug(acknowledged_before_commit, "a save is acknowledged when all ranks have voted, before its COMMIT")          \
      bug(slot_reused_while_it_is_written, "a worker fills its slot again while ckptd writes it")                 \
          bug(sealed_before_it_is_copied, "a slot is sealed when its save begins, and filled later")              \
              bug(update_overtakes_the_copy, "an update does not wait for the copy of the state into the slot")   \
                  bug(sealed_slot_goes_with_its_worker, "what a worker had sealed when it died is not written")   \
                      bug(settled_before_saves_end, "a start hears that all is settled while ckptd still writes") \
                          bug(death_while_filling_is_not_told, "the others do not hear of a worker that died while it filled its slot")

// Of two nodes that are cut from each other, which only the worlds of `--cut` have.
#define ELRUN_SIM_CUT_BUGS(bug)                                                                                                     \
  bug(both_of_a_pair_are_excluded, "of two nodes that cannot reach each other neither is in the next world")                        \
      bug(a_third_is_excluded, "the last member is excluded in the place of one that cannot reach another")                         \
          bug(excluded_for_good, "a node that was excluded is never tried again")                                                   \
              bug(cut_costs_a_restart, "two nodes that cannot reach each other cost a restart, although one of them can be spared") \
                  bug(unreachable_is_not_told, "an agent does not tell the coordinator which peer its worker cannot reach")

namespace elrun::sim {

enum class Bug {
  none,
#define ELRUN_SIM_BUG_NAME(name, what) name,
  ELRUN_SIM_BUGS(ELRUN_SIM_BUG_NAME) ELRUN_SIM_JOB_BUGS(ELRUN_SIM_BUG_NAME) ELRUN_SIM_JOB_CUT_BUGS(ELRUN_SIM_BUG_NAME)
      ELRUN_SIM_JOB_SAVE_BUGS(ELRUN_SIM_BUG_NAME) ELRUN_SIM_CUT_BUGS(ELRUN_SIM_BUG_NAME)
#undef ELRUN_SIM_BUG_NAME
};

enum class BugOf : std::uint8_t { any_world, jobs, job_saves, cut_jobs, cuts };
struct BugText {
  Bug bug;
  std::string_view name, what;
  BugOf of = BugOf::any_world;
};
inline constexpr auto bug_texts = std::to_array<BugText>({
#define ELRUN_SIM_BUG_TEXT(name, what) {Bug::name, #name, what, BugOf::any_world},
#define ELRUN_SIM_JOB_BUG_TEXT(name, what) {Bug::name, #name, what, BugOf::jobs},
#define ELRUN_SIM_JOB_SAVE_BUG_TEXT(name, what) {Bug::name, #name, what, BugOf::job_saves},
#define ELRUN_SIM_JOB_CUT_BUG_TEXT(name, what) {Bug::name, #name, what, BugOf::cut_jobs},
#define ELRUN_SIM_CUT_BUG_TEXT(name, what) {Bug::name, #name, what, BugOf::cuts},
    ELRUN_SIM_BUGS(ELRUN_SIM_BUG_TEXT) ELRUN_SIM_JOB_BUGS(ELRUN_SIM_JOB_BUG_TEXT) ELRUN_SIM_JOB_SAVE_BUGS(ELRUN_SIM_JOB_SAVE_BUG_TEXT)
        ELRUN_SIM_JOB_CUT_BUGS(ELRUN_SIM_JOB_CUT_BUG_TEXT) ELRUN_SIM_CUT_BUGS(ELRUN_SIM_CUT_BUG_TEXT)
#undef ELRUN_SIM_CUT_BUG_TEXT
#undef ELRUN_SIM_JOB_CUT_BUG_TEXT
#undef ELRUN_SIM_JOB_SAVE_BUG_TEXT
#undef ELRUN_SIM_JOB_BUG_TEXT
#undef ELRUN_SIM_BUG_TEXT
});

class Fingerprint;

/// The one bug of this thread's simulations.
inline thread_local Bug planted_bug = Bug::none;

/// An assertion of a core that did not hold: here a finding, in the product the end of the process.
struct AssertionFailed : std::logic_error {
  using std::logic_error::logic_error;
};
inline thread_local std::string last_assertion;  // for who runs code that catches what it throws
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace elrun::sim

#define ELRUN_PLANTED(name) (::elrun::sim::planted_bug == ::elrun::sim::Bug::name)
#define ELRUN_COMPARED_IN_SIMULATION friend class ::elrun::sim::Fingerprint;
#define ELRUN_ASSERTION_FAILED ::elrun::sim::assertion_failed
