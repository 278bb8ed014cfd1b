#include "rendezvous/round/generation_state.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::generation_state {
namespace {

const NodeId a{"a"}, b{"b"}, c{"c"};
constexpr Instant began{100s};

GenerationState three() { return {{7, {}}, {{a, "a.local", 2, 0, 1}, {b, "b.local", 3, 2, 2}, {c, "c.local", 1, 5, 3}}, 99, 1, began}; }

}  // namespace

TEST_CASE("before the first generation nothing runs, and nobody is done", "[generation_state]") {
  const GenerationState none;
  CHECK_FALSE(none.has_begun());
  CHECK_FALSE(none.runs());
  CHECK_FALSE(none.all_done());
  CHECK_FALSE(none.is_deserted(Instant{}));
}

TEST_CASE("a rank and a node lead to the member, and a place to its seat", "[generation_state]") {
  const GenerationState state = three();
  for (const auto& [rank, node] : {std::pair{0u, a}, {1u, a}, {2u, b}, {4u, b}, {5u, c}}) CHECK(state.member_of(rank).node == node);
  CHECK(state.member(b) == &state.members()[1]);
  CHECK(state.member(NodeId{"d"}) == nullptr);
  CHECK(state.seat_of(1) == Seat{1, 2, 3, 6, 99});
  CHECK(state.own_place() == 1u);
}

TEST_CASE("a generation runs until it is revoked", "[generation_state]") {
  GenerationState state = three();
  CHECK(state.runs());
  state.desert(began + 10s);
  CHECK(state.is_deserted(began + 9s));
  CHECK_FALSE(state.is_deserted(began + 10s));
  state.revoke(37s, began);
  CHECK_FALSE(state.runs());
  CHECK(state.is_revoked());
  CHECK(state.revoked_at() == began);
  CHECK(state.return_by() == began + 37s);
  state.wait_for_return(began + 60s);
  CHECK(state.return_by() == began + 60s);
  CHECK_FALSE(state.is_deserted(began + 9s));
}

TEST_CASE("a generation is done when all members are, and one that is done before its session is not", "[generation_state]") {
  GenerationState state = three();
  state.done(a, false);
  state.done(b, true);
  CHECK(state.is_done(b));
  CHECK_FALSE(state.all_done());
  state.done(c, false);
  CHECK(state.all_done());
  CHECK(state.take_done_before_session() == b);
  CHECK_FALSE(state.is_done(b));
  CHECK_FALSE(state.all_done());
  CHECK_FALSE(state.take_done_before_session());
}

TEST_CASE("the log tells of the first step of a generation, then once a minute", "[generation_state]") {
  GenerationState state = three();
  CHECK_FALSE(state.has_decided());
  CHECK(state.decided(began));
  CHECK(state.has_decided());
  CHECK_FALSE(state.decided(began + 59s));
  CHECK(state.decided(began + 60s));
  CHECK_FALSE(state.decided(began + 61s));
}

TEST_CASE("what waits for a decision about a generation ends with it, and its root cause does not", "[generation_state]") {
  CurrentGeneration current{.state = three()};
  current.pending.put_off(a, {}, began);
  CHECK_FALSE(current.start_watch.note(b, {.count = 1}, began, 1s, began));
  CHECK(current.unreachable.note(a, b, {}, began));
  current.root_cause.report({began, 1, "exit code 1", {}});
  current.revoke(37s, began);
  CHECK(current.state.is_revoked());
  CHECK_FALSE(current.pending.any());
  CHECK(current.start_watch.all().empty());
  CHECK_FALSE(current.unreachable.any());
  CHECK(current.root_cause.any());
  SECTION("another generation is another value") {
    current = {.state = {{8, {}}, {}, 0, {}, began}};
    CHECK_FALSE(current.root_cause.any());
    CHECK_FALSE(current.state.is_revoked());
  }
}

TEST_CASE("a failure is judged when the program is known to be a Job's, or nobody has said so in time", "[pending_judgement]") {
  PendingJudgement pending;
  CHECK_FALSE(pending.take_due(true, began));
  WorkerFailed failed;
  failed.before_session = true;
  failed.local_rank = 3;
  pending.put_off(a, failed, began);
  CHECK(pending.any());
  CHECK(pending.until() == began + kind_known_within);
  SECTION("another worker of that node, before its session, is one with it") {
    CHECK(pending.covers(a, failed));
    CHECK_FALSE(pending.covers(b, failed));
    failed.before_session = false;
    CHECK_FALSE(pending.covers(a, failed));
  }
  SECTION("it is a Job's") {
    const auto due = pending.take_due(true, began);
    REQUIRE(due);
    CHECK(due->node == a);
    CHECK(due->failed.local_rank == 3);
    CHECK_FALSE(pending.any());
  }
  SECTION("nobody has said so") {
    CHECK_FALSE(pending.take_due(false, began + kind_known_within - 1ms));
    CHECK(pending.take_due(false, began + kind_known_within));
    CHECK_FALSE(pending.until());
  }
}

}  // namespace elrun::test::generation_state
