#include "rendezvous/round/earlier_generations.hpp"

#include "rendezvous/round/recovery_window.hpp"
#include "tests/support/a_table.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test::earlier_generations {
namespace {

constexpr Instant now{100s};
constexpr Duration wait = 10s, last_call = 30s, workers_end = 45s, stop_grace = 30s;
constexpr EarlierGenerations::Limits limits{last_call, workers_end, stop_grace};

Join knows(std::uint64_t last, std::uint64_t heard = 0) {
  Join join;
  join.last = {last, {}};
  join.heard = heard;
  return join;
}

}  // namespace

TEST_CASE("numbers begin above all that any node or the record knows of", "[earlier_generations]") {
  EarlierGenerations earlier{3, false};
  CHECK(earlier.none_is_new());
  earlier.learn_from(knows(5));
  earlier.learn_from(knows(4, 7));
  earlier.learn_from(knows(6));
  CHECK(earlier.floor() == 7);
  CHECK_FALSE(earlier.none_is_new());
  CHECK(earlier.next_number() == 8);
  CHECK(earlier.next_number() == 9);
}

TEST_CASE("members of a generation that may still run come first", "[earlier_generations]") {
  SECTION("a spare has heard of one that runs without it") {
    EarlierGenerations earlier{0, false};
    earlier.note(knows(2), wait, now);
    CHECK(earlier.hold_until() == Instant{});
    earlier.note(knows(2, 3), wait, now);
    CHECK(earlier.hold_until() == now + wait);
    earlier.note(knows(2, 4), wait, now + 5s);  // the first one counts
    CHECK(earlier.hold_until() == now + wait);
    earlier.end_hold();
    CHECK(earlier.hold_until() == Instant{});
  }
  SECTION("one is on record, and the node has not seen it") {
    EarlierGenerations earlier{3, true};
    earlier.note(knows(2), wait, now);
    CHECK(earlier.hold_until() == now + wait);
    SECTION("until a member of it has ended it") {
      earlier.note(knows(3), wait, now + 1s);
      CHECK(earlier.hold_until() == now + 1s);
    }
    SECTION("not because of one that resumes it") {
      Join resuming = knows(3);
      resuming.resuming = true;
      earlier.note(resuming, wait, now + 1s);
      CHECK(earlier.hold_until() == now + wait);
    }
  }
}

TEST_CASE("a new coordinator waits for the nodes that remain of a generation that had already ended", "[earlier_generations]") {
  EarlierGenerations earlier{0, false};
  Table table;
  CHECK(earlier.last_call(table.nodes, false, limits) == last_call);
  CHECK(earlier.last_call(table.nodes, true, limits) == 0s);
  const auto come = [&](const std::string& name, std::uint32_t place, std::optional<std::uint32_t> coordinator) -> NodeTable::Node& {
    NodeTable::Node& node = table.wait(name, now);
    table.nodes.change(node, [&](NodeTable::Node& n) {
      n.join.last = {4, {}};
      n.join.seat = Seat{place, place, 3, 3, 0};
      n.join.coordinated_by = coordinator;
    });
    earlier.note(node.join, wait, now);
    return node;
  };
  come("a", 1, 0);
  REQUIRE(earlier.ended());
  CHECK(earlier.ended()->number == 4);
  CHECK(earlier.ended_nodes() == 3);
  CHECK(earlier.last_call(table.nodes, false, limits) == reconnect_window);
  CHECK(earlier.last_call(table.nodes, false, {1s, workers_end, stop_grace}) == 1s);
  SECTION("all are here but the one in whose process it was coordinated") {
    come("b", 2, 0);
    CHECK(earlier.last_call(table.nodes, false, limits) == 0s);
  }
  SECTION("all are here but one, and it coordinated nothing") {
    come("b", 2, 1);
    CHECK(earlier.last_call(table.nodes, false, limits) == reconnect_window);
  }
  SECTION("all are here") {
    come("b", 2, {});
    come("c", 0, {});
    CHECK(earlier.last_call(table.nodes, false, limits) == 0s);
  }
  SECTION("a node that is here still ends its workers") {
    table.nodes.change(come("b", 2, 0), [](NodeTable::Node& n) { n.ready = false; });
    CHECK(earlier.last_call(table.nodes, false, limits) == last_call);
  }
  SECTION("spares fill the room: its members are waited for all the same") {
    CHECK(earlier.last_call(table.nodes, true, limits) == reconnect_window);
    CHECK(earlier.last_call(table.nodes, true, {0s, workers_end, stop_grace}) == reconnect_window);
    SECTION("one of them still ends its workers") {
      table.nodes.change(come("b", 2, 0), [](NodeTable::Node& n) { n.ready = false, n.join.resuming = true; });
      CHECK(earlier.last_call(table.nodes, true, limits) == workers_end);
      CHECK(earlier.last_call(table.nodes, true, {last_call, 0s}) == reconnect_window);
      CHECK(earlier.last_call(table.nodes, false, limits) == workers_end);
      table.nodes.change(table.nodes.at(NodeId{"b"}), [](NodeTable::Node& n) { n.join.stop_grace = stop_grace + 70s; });
      CHECK(earlier.last_call(table.nodes, true, limits) == workers_end + 70s);
    }
    SECTION("all that are left are here") {
      come("b", 2, 0);
      CHECK(earlier.last_call(table.nodes, true, limits) == 0s);
    }
  }
  SECTION("an older one does not count") {
    Join older = knows(3);
    older.seat = Seat{0, 0, 9, 9, 0};
    earlier.note(older, wait, now);
    CHECK(earlier.ended_nodes() == 3);
  }
}

}  // namespace elrun::test::earlier_generations
