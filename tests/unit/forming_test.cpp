#include "rendezvous/round/forming.hpp"

#include "tests/support/a_table.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test::forming {
namespace {

constexpr Instant now{100s};

std::string text_of(const std::vector<NodeId>& nodes) {
  std::string text;
  for (const NodeId& id : nodes) text += (text.empty() ? "" : " ") + id.value();
  return text;
}

}  // namespace

TEST_CASE("the time of forming begins with the first node, anew at the end of a generation, and ends when the next one begins",
          "[forming]") {
  Forming forming;
  CHECK_FALSE(forming.since());
  CHECK_FALSE(forming.given_up_at(600s));
  forming.start(now);
  forming.start(now + 5s);
  CHECK(forming.since() == now);
  CHECK(forming.given_up_at(600s) == now + 600s);
  CHECK(forming.has_enough(true, now + 6s));
  forming.restart(now + 10s);
  CHECK(forming.since() == now + 10s);
  CHECK_FALSE(forming.enough_since());
  CHECK(forming.has_enough(true, now + 11s));
  CHECK(forming.tell_of_lift());
  SECTION("nobody is here") {
    forming.stop();
    CHECK_FALSE(forming.given_up_at(600s));
    CHECK(forming.enough_since());
  }
  SECTION("a generation begins") {
    forming.end();
    CHECK_FALSE(forming.since());
    CHECK_FALSE(forming.enough_since());
    CHECK(forming.tell_of_lift());
  }
}

TEST_CASE("last call counts from when the minimum was reached, anew if it was lost in between", "[forming]") {
  Forming forming;
  CHECK(forming.has_enough(true, now));
  CHECK(forming.has_enough(true, now + 1s));
  CHECK(forming.enough_since() == now);
  CHECK_FALSE(forming.has_enough(false, now + 2s));
  CHECK_FALSE(forming.enough_since());
  CHECK(forming.has_enough(true, now + 3s));
  CHECK(forming.enough_since() == now + 3s);
}

TEST_CASE("an excluded node is taken after a minute, or half of the join deadline if that is less, and that is told once", "[forming]") {
  Forming forming;
  CHECK_FALSE(forming.lift_at(600s));
  forming.start(now);
  CHECK(forming.lift_at(600s) == now + exclusion_stays);
  CHECK(forming.lift_at(20s) == now + 10s);
  CHECK(forming.tell_of_lift());
  CHECK_FALSE(forming.tell_of_lift());
}

TEST_CASE("members of the last generation get a place first, then newcomers as they came, as far as there is room", "[forming]") {
  Table table;
  table.wait("d", now + 2s);
  table.wait("e", now + 1s);
  table.wait("c", now + 3s);
  CHECK(is_first_formation(table.nodes));
  CHECK(text_of(choose_nodes(table.nodes, 2)) == "e d");
  table.survive("x", now + 9s);
  CHECK_FALSE(is_first_formation(table.nodes));
  CHECK(text_of(choose_nodes(table.nodes, 3)) == "x e d");
  CHECK(text_of(choose_nodes(table.nodes, 9)) == "x e d c");
}

TEST_CASE("of two newcomers with one hint the later comes first", "[forming]") {
  Table table;
  table.wait("old", now, 1);
  table.wait("new", now + 1s, 1);
  table.wait("other", now + 2s, 0);
  CHECK(text_of(choose_nodes(table.nodes, 2)) == "new other");
  CHECK(text_of(choose_nodes(table.nodes, 3)) == "new other old");
  SECTION("and after all others where a member has that hint") {
    table.survive("member", now, 1);
    CHECK(text_of(choose_nodes(table.nodes, 4)) == "member other old new");
  }
}

TEST_CASE("the others suffice where members, and newcomers that wait, are as many as needed", "[forming]") {
  Table table;
  table.survive("a", now);
  table.survive("b", now);
  table.wait("c", now);
  CHECK(others_suffice(table.nodes, {}, 3));
  CHECK(others_suffice(table.nodes, {NodeId{"a"}}, 2));
  CHECK_FALSE(others_suffice(table.nodes, {NodeId{"a"}}, 3));
  table.nodes.change(table.nodes.at(NodeId{"b"}), [](NodeTable::Node& n) { n.ready = false; });  // its workers run
  CHECK(others_suffice(table.nodes, {}, 3));
  table.nodes.change(table.nodes.at(NodeId{"c"}), [](NodeTable::Node& n) { n.excluded = true; });
  CHECK_FALSE(others_suffice(table.nodes, {}, 3));
}

}  // namespace elrun::test::forming
