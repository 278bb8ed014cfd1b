#include "rendezvous/round/start_watch.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::start_watch {
namespace {

const NodeId a{"a"}, b{"b"};
constexpr Instant began{100s};
constexpr Instant now{120s};

WorkersStarting starting(std::uint32_t rank, std::uint32_t count, Duration ago, bool watched = false) {
  return {.generation = {}, .rank = rank, .count = count, .ago = ago, .watched = watched};
}

}  // namespace

TEST_CASE("the others are told a moment after the first member says that its workers are starting, then once a minute", "[start_watch]") {
  StartWatch watch;
  CHECK_FALSE(watch.tell_at());
  CHECK_FALSE(watch.note(a, starting(4, 2, 10s), began, 100ms, now));
  CHECK(watch.tell_at() == now + 100ms);
  CHECK_FALSE(watch.note(b, starting(6, 1, 1h), began, 100ms, now + 50ms));
  CHECK(watch.tell_at() == now + 100ms);
  CHECK(watch.all().at(a).since == now - 10s);
  CHECK(watch.all().at(b).since == began);  // not before its generation
  CHECK(watch.nodes() == std::set{a, b});
  CHECK(watch.described(now)[0] == "rank 4 of node a (and 1 more there; started 10 s ago, has not opened its session)");
  SECTION("that all have joined is told where it was told that somebody is waited for") {
    CHECK_FALSE(watch.tell(now + 99ms));
    CHECK(watch.tell(now + 100ms));
    CHECK_FALSE(watch.tell(now + 100ms));
    CHECK(watch.tell_at() == now + 100ms + starting_told_every);
    CHECK_FALSE(watch.note(a, starting(0, 0, 0s), began, 100ms, now));
    CHECK(watch.note(b, starting(0, 0, 0s), began, 100ms, now));
    CHECK_FALSE(watch.tell_at());
  }
  SECTION("and not where nobody heard of it") {
    watch.remove(b);
    CHECK_FALSE(watch.note(a, starting(0, 0, 0s), began, 100ms, now));
    CHECK_FALSE(watch.tell_at());
  }
}

TEST_CASE("others wait for a start unless all members are starting, or the rest are done", "[start_watch]") {
  StartWatch watch;
  CHECK_FALSE(watch.others_wait(2, 0));
  CHECK_FALSE(watch.note(a, starting(0, 1, 1s), began, 100ms, now));
  CHECK(watch.others_wait(2, 0));
  CHECK_FALSE(watch.others_wait(2, 1));
  CHECK_FALSE(watch.note(b, starting(1, 1, 1s), began, 100ms, now));
  CHECK_FALSE(watch.others_wait(2, 0));
}

TEST_CASE("the others are told for whom they wait, and what happens if that lasts", "[start_watch]") {
  StartWatch watch;
  CHECK_FALSE(watch.note(a, starting(4, 1, 10s), began, 100ms, now));
  const Generation generation{7, {{0x1111, 0x2222}}};
  const std::string waits = "generation 7@00000000: 2 nodes wait for rank 4 of node a (started 10 s ago, has not opened its session); ";
  CHECK(watch.text(generation, 2, true, true, 30s, now) == waits + "if that lasts another 20 s, the others go on without that node");
  CHECK(watch.text(generation, 2, false, true, 30s, now) ==
        waits + "without it fewer nodes than the minimum would be left, so no limit applies (--hang_timeout sets one)");
  CHECK(watch.text(generation, 2, false, false, 30s, now) ==
        waits + "no step is decided yet, so no limit applies (--hang_timeout sets one)");
  SECTION("its own agent has a limit for it") {
    CHECK_FALSE(watch.note(a, starting(4, 1, 10s, true), began, 100ms, now));
    CHECK(watch.text(generation, 2, true, true, 30s, now) == waits + "its node ends it after its --hang_timeout");
  }
}

TEST_CASE("members over the limit are late together with those that soon will be", "[start_watch]") {
  StartWatch watch;
  CHECK_FALSE(watch.note(a, starting(0, 1, 20s), began, 100ms, now));
  CHECK_FALSE(watch.note(b, starting(2, 1, 18s), began, 100ms, now));
  CHECK(watch.first_limit(30s) == began + 30s);
  CHECK(watch.late(30s, 3s, now).empty());
  CHECK(watch.late(30s, 3s, now + 10s) == std::vector{a, b});
  CHECK(watch.late(30s, 1s, now + 10s) == std::vector{a});
  SECTION("a member whose own agent watches it is never late") {
    CHECK_FALSE(watch.note(a, starting(0, 1, 20s, true), began, 100ms, now));
    CHECK(watch.late(30s, 3s, now + 10s).empty());
    CHECK(watch.first_limit(30s) == began + 32s);
  }
}

}  // namespace elrun::test::start_watch
