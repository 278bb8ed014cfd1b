#include "rendezvous/round/failure_records.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::failure_records {
namespace {

using Catch::Matchers::Contains;

const NodeId a{"a"}, b{"b"}, c{"c"};
constexpr Duration longest = 30min;
constexpr Instant now{1000s};
constexpr auto connected = [](const NodeId&) { return true; };
constexpr auto disconnected = [](const NodeId&) { return false; };

}  // namespace

TEST_CASE("an agent that is started again has the record of failures of its place", "[failure_records]") {
  FailureRecords records;
  CHECK_FALSE(records.open(a, "place 1", connected));
  CHECK(records.note(a, "exit code 3", true).failures == 1);
  records.close(a);
  CHECK_FALSE(records.open(b, "place 1", connected));
  const FailureRecords::History& history = records.note(b, "exit code 4", false);
  CHECK(history.failures == 2);
  CHECK_FALSE(history.at_start);
  CHECK(history.last == "exit code 4");
  SECTION("a place belongs to the node that is there") {
    CHECK_FALSE(records.open(c, "place 1", connected));
    CHECK(records.note(c, "exit code 3", true).failures == 1);
    CHECK(records.holder_of(records.record_of(b)) == b);
    CHECK(records.holder_of(records.record_of(c)) == c);
  }
  SECTION("unless that one's stream is broken") {
    records.exclude(b, 0s, longest, now);
    CHECK(records.open(c, "place 1", disconnected) == b);
    CHECK(records.is_excluded(c));
    CHECK_FALSE(records.is_excluded(b));
  }
}

TEST_CASE("each exclusion of a node is twice as long as the one before", "[failure_records]") {
  FailureRecords records;
  records.open(a, {}, connected);
  records.note(a, "exit code 3", true);
  SECTION("from 1 s to 256 s") {
    for (const Duration length : {1s, 2s, 4s, 8s, 16s, 32s, 64s, 128s, 256s, 256s}) {
      records.exclude(a, 0s, longest, now);
      REQUIRE(records.excluded().size() == 1);
      CHECK(records.excluded()[0] == std::pair{a, now + length});
    }
    CHECK_THAT(records.why_excluded(a, now), Contains("at their start (the last one by exit code 3)"));
    CHECK_THAT(records.why_excluded(a, now), Contains("it tries again in 256 s"));
  }
  SECTION("one for a wrong configuration has the longest from the beginning, and says for whom it is") {
    for (int i = 0; i < 3; ++i) {
      records.exclude(a, 0s, longest, now, true);
      CHECK(records.excluded()[0].second == now + 256s);
    }
    CHECK_THAT(records.why_excluded(a, now), Contains("(the last one by exit code 3, for a person to mend: its output says what)"));
    records.exclude(a, 0s, longest, now);
    CHECK(records.excluded()[0].second == now + 8s);
    CHECK_THAT(records.why_excluded(a, now), !Contains("a person"));
  }
  SECTION("and at least as long as its last try held the others up") {
    records.exclude(a, 300s, longest, now);
    CHECK(records.excluded()[0].second == now + 300s);
    records.exclude(a, 300s, longest, now);
    CHECK(records.excluded()[0].second == now + 600s);
    records.exclude(a, 2h, longest, now);
    CHECK(records.excluded()[0].second == now + longest);
  }
  SECTION("it ends by itself, and the failures are remembered") {
    records.exclude(a, 0s, longest, now);
    CHECK(records.due(now + 999ms).empty());
    REQUIRE(records.due(now + 1s).size() == 1);
    records.end_exclusion(records.due(now + 1s)[0]);
    CHECK_FALSE(records.is_excluded(a));
    CHECK(records.note(a, "exit code 3", true).failures == 2);
  }
}

TEST_CASE("a failure that a lost node explains is taken back", "[failure_records]") {
  FailureRecords records;
  records.open(a, {}, connected);
  CHECK_FALSE(records.take_back());
  records.note(a, "exit code 3", false);
  records.note(a, "exit code 3", false);
  records.blame(a);
  records.exclude(a, 0s, longest, now);
  CHECK(records.take_back() == a);
  CHECK_FALSE(records.is_excluded(a));
  CHECK(records.note(a, "exit code 3", false).failures == 2);
  CHECK_FALSE(records.take_back());  // once
  SECTION("and not in the next generation") {
    records.blame(a);
    records.begin();
    CHECK_FALSE(records.take_back());
  }
}

TEST_CASE("a decided step ends the row of failures of the members that are not excluded", "[failure_records]") {
  FailureRecords records;
  for (const NodeId& node : {a, b, c}) {
    records.open(node, {}, connected);
    records.note(node, "exit code 3", false);
  }
  records.exclude(b, 0s, longest, now);
  records.forget([](const NodeId& node) { return node != c; });
  CHECK(records.note(a, "exit code 3", false).failures == 1);
  CHECK(records.note(b, "exit code 3", false).failures == 2);
  CHECK(records.note(c, "exit code 3", false).failures == 2);
}

}  // namespace elrun::test::failure_records
