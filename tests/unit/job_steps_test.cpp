// Steps without a job: OpenStep, the step that the program has; DecidedSteps, what is decided; HeldState, what a member holds of it.

#include <numeric>

#include <fmt/format.h>

#include "lib/job/commit/decided_steps.hpp"
#include "lib/job/evaluate/evaluation.hpp"
#include "lib/job/open_step.hpp"
#include "lib/job/recover/held_state.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

constexpr Instant noon{12h};

Membership alone(std::uint64_t generation) { return {{generation, {}}, Rank{0}, WorldSize{1}}; }

/// This world of one votes, hears itself, decides and applies.
void do_step(DecidedSteps& steps, bool stops = false, float loss = 1) {
  steps.hand_out();
  steps.pass(Sgd{}, {.lr = 0.5f}, true);
  const Vote mine = steps.vote(true);
  REQUIRE(steps.hear(Rank{0}, mine));
  steps.decide({.squares = 4, .loss = loss, .tokens = 7, .stops = stops});
  steps.apply();
}

DecidedSteps begun(std::uint64_t generation = 1) {
  DecidedSteps steps;
  steps.begin_anew(alone(generation));
  return steps;
}

}  // namespace

// ---- OpenStep

TEST_CASE("a step is open until apply(), and undecided until it is decided or revoked", "[open_step]") {
  OpenStep step;
  CHECK_FALSE(step.is_open());
  CHECK_FALSE(step.revoke());  // there was none
  step.begin(noon);
  CHECK(step.is_open());
  CHECK(step.begun() == noon);
  step.close();
  CHECK_FALSE(step.is_open());
  CHECK(step.is_undecided());
  SECTION("decided") {
    step.decide();
    CHECK_FALSE(step.is_undecided());
    CHECK_FALSE(step.revoke());
  }
  SECTION("revoked: what the program changed is put back once") {
    CHECK(step.revoke());
    CHECK_FALSE(step.revoke());
  }
  SECTION("apply() without a step makes none") {
    step.decide();
    step.close();
    CHECK_FALSE(step.is_undecided());
  }
}

TEST_CASE("an evaluation that was lost in a step is known until the step is done again", "[open_step]") {
  OpenStep step;
  step.begin(noon);
  CHECK_FALSE(step.lost_evaluation());
  step.lose_evaluation();
  step.close();
  CHECK(step.lost_evaluation());
  SECTION("it is handed out again") { step.begin(noon); }
  SECTION("it is revoked") { CHECK(step.revoke()); }
  CHECK_FALSE(step.lost_evaluation());
}

TEST_CASE("after a way back to a checkpoint host state is put back at the next change of the world", "[open_step]") {
  OpenStep step;
  step.go_back();
  CHECK_FALSE(step.is_open());
  CHECK(step.is_undecided());
  CHECK(step.revoke());
}

TEST_CASE("slots() and its loop come once per step", "[open_step]") {
  OpenStep step;
  CHECK_THROWS_WITH(step.take_slots(false), Catch::Contains("slots() is called after apply()"));
  step.take_slots(true);  // the step may have been lost with the world: the loop just ends
  step.begin(noon);
  step.take_slots(false);
  CHECK_THROWS_WITH(step.take_slots(false), Catch::Contains("slots() is called twice"));
  step.begin_loop();
  CHECK_THROWS_WITH(step.begin_loop(), Catch::Contains("a second loop"));
  step.begin(noon);
  step.take_slots(false);
  step.begin_loop();
}

TEST_CASE("slots are counted anew in every step, and an audited one is none of them", "[open_step]") {
  OpenStep step;
  step.begin(noon);
  const std::vector<std::vector<std::uint32_t>> slots{{0, 1}, {2, 3}, {4, 5}};
  std::uint32_t rank = 0;
  for (; rank < 3 && !step.audit().is_due(); ++rank) step.begin(noon), step.audit().choose(1, 3, 1.0, slots, rank);
  REQUIRE(step.audit().take_slot().has_value());
  CHECK_FALSE(step.own_slot().has_value());
  CHECK(step.audit().end_slot());
  CHECK(step.own_slot() == 0u);
  step.end_slot();
  CHECK(step.slot() == 1);
  step.begin_evaluation(10, {0, 2});
  step.ask();
  CHECK(step.audit().refuse());
  step.begin(noon);
  CHECK(step.slot() == 0);
  CHECK_FALSE(step.is_evaluating());
  CHECK_FALSE(step.audit().is_chosen());
  CHECK(step.was_asked_for());         // over all steps,
  CHECK_FALSE(step.audit().refuse());  // as that no audit is possible is said once
}

// ---- DecidedSteps

TEST_CASE("a decided step takes the values of its votes along", "[decided_steps]") {
  DecidedSteps steps = begun();
  do_step(steps, false, 0.25f);
  CHECK(steps.applied() == 1);
  CHECK(steps.loss() == 0.25f);
  CHECK(steps.skipped() == 0);
  CHECK(steps.decision().count == 1);
  CHECK(steps.decision().tokens == 7);
  CHECK(steps.decision().update == values_of(Sgd{}, {.lr = 0.5f}));
  CHECK(steps.memory().of(0) == steps.decision().update);
  CHECK_FALSE(steps.ends());
}

TEST_CASE("a step whose norm is not finite counts, and is skipped", "[decided_steps]") {
  DecidedSteps steps = begun();
  steps.hand_out();
  steps.pass(Sgd{}, {.lr = 0.5f}, true);
  REQUIRE(steps.hear(Rank{0}, steps.vote(false)));
  steps.decide({.squares = 4});
  CHECK(steps.decision().skips());
  steps.apply();
  CHECK(steps.applied() == 1);
  CHECK(steps.skipped() == 1);
}

TEST_CASE("an end that is asked for in a revoked step is forgotten, and one in a decided step stays", "[decided_steps]") {
  DecidedSteps steps = begun();
  steps.hand_out();
  steps.ask_to_stop();
  CHECK(steps.asks_to_stop());
  steps.revoke();
  CHECK_FALSE(steps.asks_to_stop());
  do_step(steps, true);
  CHECK(steps.ends());
  CHECK(steps.progress(9).stopped_of_steps == 9);
  DecidedSteps loaded = begun();
  loaded.load(steps.progress(9), alone(2), 9);
  CHECK(loaded.ends());
  loaded.load(steps.progress(9), alone(2), 12);  // more steps are wanted since
  CHECK_FALSE(loaded.ends());
}

TEST_CASE("what was passed for a step is what it has to be done again with, unless an evaluation in it was lost", "[decided_steps]") {
  DecidedSteps steps = begun();
  steps.hand_out();
  steps.pass(Sgd{}, {.lr = 0.25f}, false);  // follows from what the lost evaluation would have said
  CHECK_FALSE(steps.report().tried.known());
  steps.revoke(), steps.hand_out();
  steps.pass(Sgd{}, {.lr = 0.5f}, true);
  CHECK(steps.report().tried == values_of(Sgd{}, {.lr = 0.5f}));
  steps.revoke(), steps.hand_out();
  steps.pass(Sgd{}, {.lr = 0.75f}, false);
  CHECK(steps.report().tried == values_of(Sgd{}, {.lr = 0.5f}));
  REQUIRE(steps.hear(Rank{0}, steps.vote(true)));
  CHECK(steps.report().passed == values_of(Sgd{}, {.lr = 0.75f}));
}

TEST_CASE("evaluations are counted since the last applied step", "[decided_steps]") {
  DecidedSteps steps = begun();
  do_step(steps);
  steps.remember({.loss = 2, .tokens = 3, .decided = true});
  CHECK(steps.evaluations() == 1);
  CHECK(decode_evaluation(steps.evaluation())->loss == 2);
  do_step(steps);
  CHECK(steps.evaluations() == 0);
  CHECK(steps.evaluation().empty());
}

TEST_CASE("a member that voted learns the decision in the next generation, and applies it as the others did", "[decided_steps]") {
  DecidedSteps steps;
  steps.begin_anew({{1, {}}, Rank{0}, WorldSize{2}});
  steps.hand_out();
  steps.pass(Sgd{}, {.lr = 0.5f}, true);
  CHECK(steps.hear(Rank{0}, steps.vote(true)));
  CHECK(steps.knowledge().voted == 1);
  const Decision theirs{.squares = 9, .loss = 3, .count = 1};
  steps.learn(1, {1, {}}, theirs);
  CHECK(steps.decision() == theirs);
  steps.apply();
  steps.begin_generation(alone(2));
  CHECK(steps.applied() == 1);
  CHECK(steps.knowledge().decided_in == Generation{1, {}});
  SECTION("what was decided here already is not learned again") {
    steps.learn(1, {1, {}}, {.squares = 1, .count = 1});
    CHECK(steps.decision() == theirs);
  }
  SECTION("a vote of another generation does not count") { CHECK_FALSE(steps.hear(Rank{0}, {{1, {}}, 1, true})); }
}

TEST_CASE("a member that gets another one's state forgets its own evaluations, and goes on from there", "[decided_steps]") {
  DecidedSteps steps = begun();
  steps.remember({.loss = 2, .decided = true});
  steps.take_decision({.squares = 5, .count = 6});
  steps.go_on_at(alone(3), 6, {2, {}});
  CHECK(steps.evaluations() == 0);
  CHECK(steps.applied() == 6);
  CHECK(steps.decision().squares == 5);
  CHECK(steps.knowledge().decided_in == Generation{2, {}});
}

TEST_CASE("a checkpoint's progress is that of the job that wrote it, and a way back to nothing keeps none", "[decided_steps]") {
  DecidedSteps steps = begun();
  do_step(steps, false, 0.5f);
  do_step(steps, false, 0.25f);
  const JobProgress saved = steps.progress(9);
  CHECK(saved.applied == 2);
  CHECK(saved.loss == 0.25f);
  CHECK(saved.first_update == steps.memory().of(0));
  CHECK(saved.last_update == steps.memory().of(1));
  DecidedSteps loaded = begun();
  loaded.load(saved, alone(4), 9);
  CHECK(loaded.progress(9) == saved);
  CHECK(loaded.knowledge().decided_in == Generation{4, {}});
  steps.remember({.loss = 2, .decided = true});
  steps.begin_anew(alone(5));
  CHECK(steps.applied() == 0);
  CHECK(steps.decision() == Decision{});
  CHECK(steps.evaluations() == 0);  // it was of other weights
  CHECK(steps.evaluation().empty());
  CHECK(steps.progress(9).first_update == UpdateValues{});
}

TEST_CASE("the program's next run in the process goes on where the last one was, without what a revoked step asked for",
          "[decided_steps]") {
  DecidedSteps before = begun();
  do_step(before, false, 0.5f);
  before.hand_out();
  before.ask_to_stop();
  before.remember({.loss = 2, .decided = true});
  DecidedSteps revoked = begun(), between = begun();
  revoked.continue_from(before, true);
  between.continue_from(before, false);
  CHECK(revoked.applied() == 1);
  CHECK(revoked.loss() == 0.5f);
  CHECK(revoked.decision() == before.decision());
  CHECK_FALSE(revoked.asks_to_stop());
  CHECK(between.asks_to_stop());
  CHECK(revoked.evaluations() == 1);  // other members may not have heard of it yet
  CHECK(revoked.evaluation() == before.evaluation());
}

// ---- HeldState

TEST_CASE("a member that begins has nothing, and with restore() its program makes the state", "[held_state]") {
  HeldState held;
  CHECK_FALSE(held.has_state());
  CHECK_FALSE(held.has_begun());
  held.begin_anew(false);
  held.complete();
  CHECK_FALSE(held.has_state());
  held.restored(false);
  CHECK(held.has_state());
  CHECK(held.has_begun());
  CHECK_FALSE(held.is_found());
}

TEST_CASE("a newcomer has parameters first and host state later", "[held_state]") {
  HeldState held;
  held.spoil();  // the transfer begins
  CHECK(held.has_begun());
  CHECK_FALSE(held.has_state());
  held.receive_state();
  CHECK(held.has_state());
  CHECK_FALSE(held.has_host_state());
  held.receive_host_state();
  held.complete();
  CHECK(held.has_host_state());
  CHECK(held.is_found());
}

TEST_CASE("who looks for a checkpoint may leave parts of one, also where none is found", "[held_state]") {
  HeldState held;
  held.restored(false);
  held.begin_anew(true);
  CHECK_FALSE(held.has_state());
  CHECK(held.has_begun());
  SECTION("found") {
    held.load();
    held.complete();
    CHECK(held.has_state());
    CHECK(held.is_found());
  }
  SECTION("not found, after restore(): the program makes it again") {
    held.complete();
    CHECK(held.has_state());
    CHECK_FALSE(held.is_found());
  }
  SECTION("not found, before restore()") {
    HeldState fresh;
    fresh.begin_anew(true);
    fresh.complete();
    CHECK_FALSE(fresh.has_state());
    CHECK(fresh.has_begun());
  }
}

TEST_CASE("what a run of the program takes over is a whole state, or a newcomer's", "[held_state]") {
  HeldState held;
  held.take_over();
  CHECK(held.has_state());
  CHECK(held.is_found());
  CHECK(held.has_begun());
  CHECK_FALSE(held.is_restored());
  CHECK(held.keeps_position());
  SECTION("its variables are others") {
    held.lose();
    CHECK_FALSE(held.has_state());
  }
  SECTION("the state is lost, and comes from a checkpoint") { held.begin_anew(true); }
  SECTION("it was a step behind, and gets the others' state") {
    held.spoil();
    held.receive_state();
  }
  CHECK_FALSE(held.keeps_position());
}

TEST_CASE("a part of an evaluation has each name once, and all that a rank may add fits into one", "[job_steps]") {
  constexpr std::uint64_t slots = 1000;
  EvaluationSums sums;
  for (std::size_t i = 0; i < evaluation_sums_max; ++i) sums[fmt::format("{:0>{}}", i, evaluation_sum_name_max)] = static_cast<double>(i);
  EvaluationPart part{slots};
  for (std::uint64_t slot = 0; slot < slots; ++slot) part.put_slot(1, 1, sums);
  const ByteVector bytes = part.bytes();
  CHECK(bytes.size() - 12 - evaluation_sums_max * (4 + evaluation_sum_name_max) == slots * (16 + evaluation_sums_max * 12));
  std::vector<std::uint32_t> all(slots);
  std::iota(all.begin(), all.end(), 0u);
  const std::vector<std::vector<std::uint32_t>> by_rank{all};
  const auto fold = [&](ByteVector of) { return fold_evaluation(slots, 1, by_rank, std::vector<ByteVector>{std::move(of)}, 0); };
  const auto folded = fold(bytes);
  REQUIRE(folded.ok());
  REQUIRE(folded->sums.size() == evaluation_sums_max);
  for (const auto& [name, sum] : folded->sums) CHECK(sum == sums.at(name) * slots);
  SECTION("a number without a name is no part") {
    ByteVector wrong = bytes;
    wrong[bytes.size() - 12] = std::byte{evaluation_sums_max};
    CHECK(fold(wrong).failure().code == Code::protocol);
  }
  SECTION("names beyond the limit are refused before they are read") {
    sums["one more"] = 0;
    part.put_slot(1, 1, sums);
    const auto refused = fold(part.bytes());
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().code == Code::mismatch);
    CHECK(refused.failure().what.find("sums of 65 names") != std::string::npos);
  }
}

}  // namespace elrun::test
