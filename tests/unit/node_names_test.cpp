#include "rendezvous/round/node_names.hpp"

#include "tests/support/a_table.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test::node_names {
namespace {

using Claim = NodeNames::Claim;

const NodeId a{"a"};
constexpr Instant start{100s};
constexpr Timeouts timeouts{};
Incarnation number(std::uint64_t n) { return {a, n}; }
Join join_of(std::uint64_t n) {
  Join join;
  join.who = number(n);
  return join;
}
NodeTable::Node lost(std::uint64_t n, std::uint64_t first, std::uint64_t newest) {
  NodeTable::Node node;
  node.join = join_of(n);
  node.first = StreamNumber{first}, node.newest = StreamNumber{newest};
  return node;
}

}  // namespace

TEST_CASE("a process that was replaced stays so", "[node_names]") {
  NodeNames names;
  CHECK_FALSE(names.is_replaced(number(1)));
  names.replace(number(1));
  CHECK(names.is_replaced(number(1)));
  CHECK_FALSE(names.is_replaced(number(2)));
  CHECK_FALSE(names.is_replaced({NodeId{"b"}, 1}));
  SECTION("a bounded number is remembered") {
    for (std::uint64_t n = 2; n < 2 + replaced_max; ++n) names.replace(number(n));
    CHECK_FALSE(names.is_replaced(number(1)));
    CHECK(names.is_replaced(number(1 + replaced_max)));
  }
}

TEST_CASE("a lost member is replaced when another process has its name, and not when it comes back itself", "[node_names]") {
  NodeNames names;
  names.lose(lost(1, 5, 5));
  names.take_over(number(1));
  CHECK_FALSE(names.is_replaced(number(1)));
  names.take_over(number(2));
  CHECK(names.is_replaced(number(1)));
  CHECK_FALSE(names.is_replaced(number(2)));
}

TEST_CASE("a Join on an earlier stream than its process opened, or than its successor did, was sent before", "[node_names]") {
  NodeNames names;
  SECTION("of a node that is here") {
    Table table;
    table.streams = 4;
    const NodeTable::Node& node = table.wait("a", start);  // on stream 5
    for (const std::uint64_t n : {1u, 2u}) {
      CHECK(names.is_outdated(StreamNumber{4}, number(n), &node));
      CHECK_FALSE(names.is_outdated(StreamNumber{5}, number(n), &node));
    }
    CHECK(names.is_newest(number(1), &node));
    CHECK_FALSE(names.is_newest(number(2), &node));
  }
  SECTION("of one that was lost") {
    names.lose(lost(1, 5, 8));
    CHECK(names.is_outdated(StreamNumber{7}, number(1), nullptr));
    CHECK_FALSE(names.is_outdated(StreamNumber{8}, number(1), nullptr));
    CHECK(names.is_outdated(StreamNumber{4}, number(2), nullptr));
    CHECK_FALSE(names.is_outdated(StreamNumber{6}, number(2), nullptr));  // it came while that one was there, which then came again
    CHECK(names.is_newest(number(1), nullptr));
    CHECK_FALSE(names.is_newest(number(2), nullptr));
  }
  SECTION("of a name that nobody had") { CHECK_FALSE(names.is_outdated(StreamNumber{1}, number(1), nullptr)); }
}

TEST_CASE("a claimant waits until the node is silent or gone", "[node_names]") {
  NodeNames names;
  Table table;
  table.wait("a", start);
  const auto open = [&](std::uint64_t stream) { table.nodes.open(StreamNumber{stream}, false, 5s, start); };
  for (const std::uint64_t stream : {11u, 12u}) open(stream);
  CHECK(names.claimed().empty());
  CHECK(names.claim(StreamNumber{11}, join_of(2), start) == Claim::waits);
  CHECK(names.claim(StreamNumber{12}, join_of(3), start + 1s) == Claim::waits);
  CHECK(names.claim(StreamNumber{11}, join_of(2), start + 2s) == Claim::waits_already);
  CHECK(names.claimed() == std::vector{a});
  CHECK(names.refused_at(5s) == std::vector{start + 5s});
  const auto resolve = [&](Instant now) { return names.resolve(a, table.nodes, timeouts, now); };
  SECTION("it is refused when the node has said something well after it came") {
    table.nodes.heard(StreamNumber{1}, start + 4500ms);
    CHECK(resolve(start + 4600ms).refused.empty());
    const auto resolved = resolve(start + 5s);
    CHECK(resolved.refused == std::vector{StreamNumber{11}});
    CHECK_FALSE(resolved.heir);
    CHECK(names.refused_at(5s) == std::vector{start + 6s});
  }
  SECTION("what was heard before may have been said before the other process was started, and was under way") {
    table.nodes.heard(StreamNumber{1}, start + 4s);
    CHECK(resolve(start + 9s).refused.empty());
    table.nodes.heard(StreamNumber{1}, start + 9100ms);  // who lives says something in each heartbeat
    CHECK(resolve(start + 9100ms).refused == std::vector{StreamNumber{11}, StreamNumber{12}});
  }
  SECTION("what counts as heard since the coordinator was stopped proves nothing") {
    table.nodes.heard(StreamNumber{1}, start + 7s);
    names.begin_anew(start + 7s);
    CHECK(resolve(start + 7s).refused.empty());
    CHECK(names.refused_at(5s) == std::vector{start + 12s});
    CHECK(resolve(start + 12s).refused.empty());
  }
  SECTION("the earliest one has the name when the node is gone, and the others wait anew") {
    table.nodes.erase(a);
    const auto resolved = resolve(start + 3s);
    REQUIRE(resolved.heir);
    CHECK(resolved.heir->stream == StreamNumber{11});
    CHECK(resolved.heir->join.who == number(2));
    CHECK(names.refused_at(5s) == std::vector{start + 8s});
  }
  SECTION("one whose stream has ended claims nothing") {
    table.nodes.close(StreamNumber{11});
    table.nodes.erase(a);
    CHECK(resolve(start + 3s).heir->stream == StreamNumber{12});
    CHECK(names.claimed().empty());
  }
  SECTION("a name that nobody claims has no heir") {
    table.nodes.erase(a);
    for (int i = 0; i < 2; ++i) CHECK(resolve(start + 3s).heir);
    CHECK_FALSE(resolve(start + 3s).heir);
  }
  SECTION("all of them are told when the job is over") {
    table.nodes.close(StreamNumber{11});
    CHECK(names.end_claims(table.nodes) == std::vector{StreamNumber{12}});
    CHECK(names.claimed().empty());
  }
  SECTION("there is room for a few") {
    for (std::uint64_t stream = 13; stream < 11 + claimants_max; ++stream)
      CHECK(names.claim(StreamNumber{stream}, join_of(stream), start) == Claim::waits);
    CHECK(names.claim(StreamNumber{99}, join_of(99), start) == Claim::too_many);
  }
}

}  // namespace elrun::test::node_names
