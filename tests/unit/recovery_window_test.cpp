#include "rendezvous/round/recovery_window.hpp"

#include "rendezvous/round/assign.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test::recovery_window {
namespace {

using Taken = RecoveryWindow::Taken;
using Catch::Matchers::Contains;

constexpr Duration wait = 10s;
constexpr Instant start{100s};

/// Three nodes of two workers each, which come back from a generation with these seats.
struct Three {
  std::map<NodeId, Join> joins;
  Three() {
    std::vector<Member> members;
    for (const char* name : {"a", "b", "c"})
      members.push_back({NodeId{name}, std::string{name} + ".local", 2, static_cast<std::uint32_t>(2 * members.size()), 4000});
    for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
      Join join;
      join.who = {members[rank].node, 1};
      join.workers = 2;
      join.address = members[rank].address;
      join.master_port = 4000;
      join.last = {7, {}};
      join.resuming = true;
      join.seat = Seat{rank, 2 * rank, 3, 6, roster_hash(members)};
      join.coordinated_by = 0;
      joins.emplace(members[rank].node, join);
    }
  }
  Join& operator[](const char* name) { return joins.at(NodeId{name}); }
  [[nodiscard]] RecoveryWindow::JoinOf of() const {
    return [this](const NodeId& id) -> const Join& { return joins.at(id); };
  }
};

}  // namespace

TEST_CASE("a generation whose members have all come is complete", "[recovery_window]") {
  Three nodes;
  RecoveryWindow window{nodes["c"], wait, start};
  CHECK(window.generation() == nodes["c"].last);
  CHECK(window.nodes() == 3);
  CHECK(window.take(nodes["c"], start) == Taken::yes);
  CHECK(window.take(nodes["a"], start) == Taken::yes);
  CHECK(window.take(nodes["a"], start) == Taken::yes);  // again, on another stream
  CHECK(window.take(nodes["b"], start) == Taken::complete);
  const auto members = window.all_members(nodes.of());
  REQUIRE(members);
  CHECK((*members)[1] == Member{NodeId{"b"}, "b.local", 2, 2, 4000});
  CHECK(roster_hash(*members) == nodes["a"].seat->roster);
  SECTION("unless they do not agree on who they are") {
    nodes["b"].address = "elsewhere";
    CHECK_FALSE(window.all_members(nodes.of()));
  }
}

TEST_CASE("a seat that contradicts the others is not taken", "[recovery_window]") {
  Three nodes;
  RecoveryWindow window{nodes["a"], wait, start};
  REQUIRE(window.take(nodes["a"], start) == Taken::yes);
  SECTION("another world") {
    ++nodes["b"].seat->roster;
    CHECK(window.take(nodes["b"], start) == Taken::no);
  }
  SECTION("a seat that another node has") {
    nodes["b"].seat = nodes["a"].seat;
    CHECK(window.take(nodes["b"], start) == Taken::no);
  }
  SECTION("the seat of a node that is gone is free") {
    nodes["b"].seat = nodes["a"].seat;
    window.remove(NodeId{"a"});
    CHECK(window.take(nodes["b"], start) == Taken::yes);
  }
}

TEST_CASE("members are waited for as long as others arrive", "[recovery_window]") {
  Three nodes;
  RecoveryWindow window{nodes["a"], wait, start};
  CHECK(window.take(nodes["a"], start + 1s) == Taken::yes);
  CHECK(window.until() == start + 1s + wait);
  CHECK(window.take(nodes["b"], start + 9s) == Taken::yes);
  CHECK(window.until() == start + 9s + wait);
  CHECK(window.take(nodes["b"], start + 12s) == Taken::yes);  // it was there
  CHECK(window.until() == start + 9s + wait);
  CHECK_THAT(window.why(), Contains("for 10 s none of the others came"));
}

TEST_CASE("of a generation that cannot go on, the others have a reconnect window", "[recovery_window]") {
  Three nodes;
  RecoveryWindow window{nodes["a"], wait, start};
  nodes["a"].broken = true;
  CHECK(window.take(nodes["a"], start) == Taken::yes);
  CHECK(window.until() == start + reconnect_window);
  CHECK_THAT(window.why(), Contains("a worker of node a has failed or lost a peer"));
  CHECK(window.take(nodes["b"], start + 1s) == Taken::yes);
  CHECK(window.until() == start + reconnect_window);
  const std::vector<Member> present = window.present_members(nodes.of());
  REQUIRE(present.size() == 2);
  CHECK(present[1].node == NodeId{"b"});
  CHECK(present[1].base_rank == 0);
}

TEST_CASE("the node in whose process the generation was coordinated is not waited for", "[recovery_window]") {
  Three nodes;
  RecoveryWindow window{nodes["b"], wait, start};
  REQUIRE(window.take(nodes["b"], start) == Taken::yes);
  CHECK_FALSE(window.only_its_coordinator_is_missing(false, nodes.of()));  // two are
  REQUIRE(window.take(nodes["c"], start) == Taken::yes);
  CHECK(window.only_its_coordinator_is_missing(false, nodes.of()));
  SECTION("another one is") {
    nodes["b"].coordinated_by = 1;
    CHECK_FALSE(window.only_its_coordinator_is_missing(false, nodes.of()));
    nodes["b"].coordinated_by.reset();
    CHECK_FALSE(window.only_its_coordinator_is_missing(false, nodes.of()));
  }
  SECTION("an elected one may have stepped down, and come") {
    CHECK_FALSE(window.only_its_coordinator_is_missing(true, nodes.of()));
    nodes["b"].coordinator_fell_silent = true;
    CHECK_FALSE(window.only_its_coordinator_is_missing(true, nodes.of()));
    nodes["c"].coordinator_fell_silent = true;
    CHECK(window.only_its_coordinator_is_missing(true, nodes.of()));
  }
  SECTION("an elected one whose generation cannot go on is not") {
    nodes["b"].broken = true;
    REQUIRE(window.take(nodes["b"], start) == Taken::yes);
    CHECK(window.only_its_coordinator_is_missing(true, nodes.of()));
  }
}

}  // namespace elrun::test::recovery_window
