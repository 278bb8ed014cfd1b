#include "rendezvous/round/excluded_nodes.hpp"

#include "rendezvous/round/unreachable_pairs.hpp"
#include "tests/support/a_table.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test::excluded_nodes {
namespace {

const NodeId a{"a"}, b{"b"}, c{"c"};
constexpr Instant now{100s};

struct Three : Table {
  ExcludedNodes excluded;
  Three() {
    for (const char* name : {"a", "b", "c"}) {
      const Join join = wait(name, now).join;
      CHECK_FALSE(excluded.enter(join, nodes, now));
    }
  }
  [[nodiscard]] bool is_out(const NodeId& id) const { return nodes.at(id).excluded; }
  void fail(const NodeId& id, Instant at) {
    excluded.failed(id, "exit code 1", true);
    excluded.exclude(id, 0s, nodes, at);
  }
  void exclude_unreachable(const NodeId& id, const NodeId& from, Instant at) {
    excluded.exclude_unreachable(id, "it and another", {from}, nodes, at);
  }
};

}  // namespace

TEST_CASE("a node is marked as excluded for as long as one of the two reasons holds", "[excluded_nodes]") {
  Three three;
  three.fail(a, now);
  three.exclude_unreachable(a, b, now);
  CHECK(three.is_out(a));
  CHECK(three.excluded.only_failing(three.nodes) == 0);
  SECTION("the workers may try again first") {
    CHECK(three.excluded.retry_due(three.nodes, now + exclusion_first) == std::vector{a});
    CHECK(three.is_out(a));
    three.excluded.let_in(a, three.nodes, now + 2s);
    CHECK_FALSE(three.is_out(a));
  }
  SECTION("the pair may end first") {
    three.excluded.let_in(a, three.nodes, now);
    CHECK(three.is_out(a));
    CHECK(three.excluded.only_failing(three.nodes) == 1);
    three.excluded.retry(a, three.nodes, now + 1ms);
    CHECK_FALSE(three.is_out(a));
  }
}

TEST_CASE("a node that is let in is a newcomer from that moment on, and is told again what it waits for", "[excluded_nodes]") {
  Three three;
  three.exclude_unreachable(a, b, now);
  three.nodes.at(a).told = 7;
  CHECK(three.nodes.waiting() == 2);
  three.excluded.let_in(a, three.nodes, now + 5s);
  CHECK(three.nodes.waiting() == 3);
  CHECK(three.nodes.at(a).arrived == now + 5s);
  CHECK(three.nodes.at(a).told == 0);
}

TEST_CASE("a failure that was the consequence of a lost node excludes nobody", "[excluded_nodes]") {
  Three three;
  three.fail(a, now);
  three.excluded.blame(a);
  SECTION("it is taken back") {
    three.excluded.take_back(three.nodes);
    CHECK_FALSE(three.is_out(a));
  }
  SECTION("not once the next generation has begun") {
    three.excluded.begin();
    three.excluded.take_back(three.nodes);
    CHECK(three.is_out(a));
  }
}

TEST_CASE("an exclusion is for the process that earned it, or for its place", "[excluded_nodes]") {
  Three three;
  three.exclude_unreachable(a, b, now);
  Join again = three.nodes.at(a).join;
  three.excluded.leave(a, now);
  three.nodes.erase(a);
  CHECK(three.excluded.enter(again, three.nodes, now));
  SECTION("another process under its name has no part in an unreachable pair") {
    three.excluded.leave(a, now);
    again.who.number = 2;
    CHECK_FALSE(three.excluded.enter(again, three.nodes, now));
  }
  SECTION("another name at the place of a node whose workers fail has its record") {
    Join first = three.nodes.at(b).join, second = first;
    first.place = second.place = "here";
    CHECK_FALSE(three.excluded.enter(first, three.nodes, now));
    three.fail(b, now);
    three.nodes.change(three.nodes.at(b), [](NodeTable::Node& n) { n.stream.reset(); });
    second.who = {NodeId{"d"}, 4};
    CHECK(three.excluded.enter(second, three.nodes, now));
    CHECK_FALSE(three.is_out(b));  // whose place it took over
  }
}

TEST_CASE("all nodes are let in that the minimum needs, the one first whose exclusion ends first", "[excluded_nodes]") {
  Three three;
  CHECK(three.excluded.let_in_needed(9, three.nodes).empty());
  three.exclude_unreachable(b, a, now);
  three.exclude_unreachable(a, b, now + 1s);
  CHECK(three.excluded.let_in_needed(2, three.nodes) == std::vector{b, a});
  CHECK(three.excluded.let_in_needed(3, three.nodes) == std::vector{b, a});
  CHECK(three.excluded.let_in_needed(4, three.nodes).empty());
}

TEST_CASE("a node is told for which reason it is excluded, the unreachable pair first", "[excluded_nodes]") {
  Three three;
  three.fail(a, now);
  CHECK(
      three.excluded.why(three.nodes.at(a), now) ==
      "excluded: its workers failed at their start (the last one by exit code 1), and the others go on without it; it tries again in 1 s");
  three.exclude_unreachable(a, b, now);
  CHECK(three.excluded.why(three.nodes.at(a), now) == "this node is excluded: it and another; it is tried again in 30 s");
  CHECK(three.excluded.unreachable_texts(three.nodes) == std::vector<std::string>{"a (it and another)"});
}

TEST_CASE("a decided step cleans the records of the members alone", "[excluded_nodes]") {
  Three three;
  three.nodes.change(three.nodes.at(a), [](NodeTable::Node& n) { n.member = true; });
  three.excluded.failed(a, "exit code 1", true);
  three.excluded.failed(b, "exit code 1", true);
  three.excluded.progressed(three.nodes);
  CHECK(three.excluded.failed(a, "exit code 1", true).failures == 1);
  CHECK(three.excluded.failed(b, "exit code 1", true).failures == 2);
}

TEST_CASE("an earlier pair is judged again with the new ones", "[exclusion]") {
  const std::vector<NodeId> order{a, b, c};
  SECTION("a new pair excludes the later node of it") {
    const Separation separation = separate({{a, b}}, {}, order, {});
    CHECK(separation.out == std::vector{b});
    CHECK(separation.coming_back.empty());
    CHECK(separation.partners_of(b) == std::set{a});
  }
  SECTION("the partner of an excluded node is cut from another one: it is out, and the first one comes back") {
    const NodeId d{"d"};
    const Separation separation = separate({{a, b}}, {{d, {b}}}, order, {});
    CHECK(separation.out == std::vector{b});
    CHECK(separation.coming_back == std::set{d});
    CHECK(separation.partners_of(b) == std::set{a, d});
  }
  SECTION("an excluded node with more partners than the new pair stays out") {
    const NodeId d{"d"};
    const Separation separation = separate({{a, b}}, {{d, {b, c}}}, order, {});
    CHECK(separation.out == std::vector{b});
    CHECK(separation.coming_back.empty());
  }
}

TEST_CASE("reports of unreachable peers are believed when both nodes of each pair were heard of since", "[unreachable_pairs]") {
  Three three;
  UnreachablePairs pairs;
  CHECK_FALSE(pairs.are_certain(three.nodes, 1s, now));
  CHECK(pairs.note(b, a, {.rank = 4, .peer = 1}, now));
  CHECK_FALSE(pairs.note(c, a, {.rank = 6, .peer = 1}, now + 1s));
  CHECK(pairs.judged_at() == now + apart_gather);
  const auto hear = [&](std::uint64_t stream, Instant at) { three.nodes.heard(StreamNumber{stream}, at); };
  hear(1, now + 1s);
  hear(2, now + 1s);
  SECTION("not before others could say it as well") {
    hear(3, now + 1s);
    CHECK_FALSE(pairs.are_certain(three.nodes, 250ms, now + apart_gather - 1ms));
    CHECK(pairs.are_certain(three.nodes, 250ms, now + apart_gather));
    const UnreachablePairs::Report report = pairs.take();
    CHECK(report.pairs == std::set<ApartNodes>{{a, b}, {a, c}});
    CHECK(report.by == b);
    CHECK(report.first.rank == 4);
    CHECK(report.since == now);
    CHECK_FALSE(pairs.any());
    CHECK_FALSE(pairs.judged_at());
  }
  SECTION("a node that is silent here too is looked at again later") {
    CHECK_FALSE(pairs.are_certain(three.nodes, 250ms, now + 3s));
    CHECK(pairs.judged_at() == now + 3250ms);
    hear(3, now + 3100ms);
    CHECK(pairs.are_certain(three.nodes, 250ms, now + 3250ms));
  }
  SECTION("a node whose stream is broken is silent") {
    hear(3, now + 1s);
    three.nodes.change(three.nodes.at(c), [](NodeTable::Node& n) { n.stream.reset(); });
    CHECK_FALSE(pairs.are_certain(three.nodes, 250ms, now + 3s));
  }
}

}  // namespace elrun::test::excluded_nodes
