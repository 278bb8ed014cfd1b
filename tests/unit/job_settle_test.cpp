// *Settle* without a job: what became of the last step follows from what members bring.

#include "lib/job/recover/settle.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

/// Decided steps, and those that the member applied.
MemberStatus member(std::uint64_t applied, std::uint64_t decided, std::uint64_t voted) {
  MemberStatus s{
      .has_state = true, .has_begun = true, .is_past_restore = true, .knowledge = {.applied = applied, .decided = decided, .voted = voted}};
  s.decision.count = decided;
  s.evaluations = 2;
  return s;
}

}  // namespace

TEST_CASE("who voted for a step that one member knows to be decided applies it; who did not vote gets the state", "[settle]") {
  std::vector<MemberStatus> statuses{MemberStatus{}, member(5, 5, 5), member(4, 4, 5), member(4, 4, 4)};
  const Settled settled = settle(statuses, Sums::alike);
  CHECK(settled.newest_step == 5);
  CHECK(settled.members == std::vector{Recovery::fetch, Recovery::go_on, Recovery::apply, Recovery::fetch});
  CHECK(settled.printer == 1);
  REQUIRE(settled.decision.has_value());
  CHECK(settled.applies(2));
  CHECK_FALSE(settled.applies(1));
  bring_up_to_date(statuses, settled, false);
  CHECK(statuses[2].knowledge.applied == 5);
  CHECK(statuses[2].evaluations == 0);
  CHECK_FALSE(statuses[2].whole_parameters);
  CHECK(statuses[1].evaluations == 2);
  CHECK(statuses[3].knowledge.applied == 4);
  CHECK(statuses[2].decision == statuses[1].decision);  // for newcomers that get the state from it
}

TEST_CASE("the first member whose program was in its loop prints", "[settle]") {
  std::vector<MemberStatus> statuses{MemberStatus{}, MemberStatus{}, member(5, 5, 5)};
  statuses[0].has_begun = true;  // a newcomer that got parts of the state before its giver died
  CHECK(settle(statuses, Sums::alike).printer == 2);
  statuses[2].is_past_restore = false, statuses[2].keeps_position = true;  // runs again in its process
  CHECK(settle(statuses, Sums::alike).printer == 2);
  statuses[2].keeps_position = false;
  CHECK(settle(statuses, Sums::alike).printer == 0);
}

TEST_CASE("a member's status comes out as it went in", "[settle]") {
  for (int bit = 0; bit < 6; ++bit) {
    MemberStatus in = member(4, 4, 5);
    in.has_state = bit == 0, in.has_host_state = bit == 1, in.has_begun = bit == 2, in.is_past_restore = bit == 3;
    in.keeps_position = bit == 4, in.whole_parameters = bit == 5;
    const auto out = decode_member_status(encode(in));
    REQUIRE(out.ok());
    CHECK(*out == in);
  }
}

TEST_CASE("a step for which members voted and that nobody knows to be decided is done again", "[settle]") {
  std::vector<MemberStatus> statuses{member(4, 4, 5), member(4, 4, 5)};
  const Settled settled = settle(statuses, Sums::alike);
  CHECK(settled.newest_step == 4);
  CHECK(settled.members == std::vector{Recovery::go_on, Recovery::go_on});
}

TEST_CASE("a recut that one member knows to be finished is finished by all who have their new shards, else by none", "[settle]") {
  const Generation second{2, {{7, 8}}}, other{2, {{7, 9}}};
  const Cut before{3, 1}, after{2, 1};
  std::vector<MemberStatus> statuses{member(5, 5, 5), member(5, 5, 5), member(5, 5, 5)};
  statuses[0].held = statuses[2].held = {.cut = before, .next = after, .next_in = second};
  statuses[1].held = {.cut = {2, 0}, .recut_in = second};
  statuses[2].held.next_in = other;  // of another coordinator's
  settle_recut(lay_out({{"unit", {{"w", DType::f32, {40 * 1024}, {}}}}}), statuses);
  CHECK(statuses[0].held == HeldCut{.cut = after, .recut_in = second});
  CHECK(statuses[1].held == HeldCut{.cut = {2, 0}, .recut_in = second});
  CHECK(statuses[2].held == HeldCut{.cut = before});
}

TEST_CASE("a recut of which nobody knows the end is undone, unless only the new shards are all of the state", "[settle]") {
  const Layout layout = lay_out({{"unit", {{"w", DType::f32, {40 * 1024}, {}}}}});
  const Generation second{2, {{7, 8}}};
  // Four ranks had two of four parts each. The last died, and then the one that had the same parts.
  const auto holds = [&](Cut before, Cut after) {
    MemberStatus s = member(5, 5, 5);
    s.held = {.cut = before, .next = after, .next_in = second};
    return s;
  };
  std::vector<MemberStatus> statuses{MemberStatus{}, holds({4, 0, 2}, {3, 0, 2}), holds({4, 0, 2}, {3, 1, 2})};
  settle_recut(layout, statuses);
  CHECK(statuses[1].held == HeldCut{.cut = {3, 0, 2}, .recut_in = second});
  CHECK(statuses[2].held == HeldCut{.cut = {3, 1, 2}, .recut_in = second});
  for (const bool all_is_there : {true, false}) {
    // The partner lives, and has not its new shard; or what is new is not all of the state either.
    statuses = {holds({4, 0, 2}, {3, 0, 2}), holds({4, 0, 2}, {3, 0, 2}), member(5, 5, 5)};
    statuses[2].held.cut = all_is_there ? Cut{4, 2, 2} : Cut{4, 1, 1};
    settle_recut(layout, statuses);
    CHECK(statuses[0].held == HeldCut{.cut = {4, 0, 2}});
    CHECK(statuses[1].held == HeldCut{.cut = {4, 0, 2}});
  }
}

TEST_CASE("an update that is left out leaves all parameters up to date", "[settle]") {
  std::vector<MemberStatus> statuses{member(5, 5, 5), member(4, 4, 5)};
  statuses[0].decision.finite = false;
  bring_up_to_date(statuses, settle(statuses, Sums::alike), false);
  CHECK(statuses[1].whole_parameters);
}

TEST_CASE("members that applied the newest step with other values than those that will are told apart", "[settle]") {
  std::vector<MemberStatus> statuses{member(5, 5, 5), member(4, 4, 5)};
  statuses[0].decision.update = {.kind = 1, .bits = {1}};
  statuses[1].voted_update = {.kind = 1, .bits = {1}};
  CHECK(check_same_update(statuses, 5).ok());
  statuses[1].voted_update.bits[0] = 2;
  CHECK_FALSE(check_same_update(statuses, 5).ok());
}

}  // namespace elrun::test
