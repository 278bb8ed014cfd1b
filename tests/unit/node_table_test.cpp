#include "rendezvous/round/node_table.hpp"

#include "tests/support/catch.hpp"

namespace elrun::test::node_table {
namespace {

using Node = NodeTable::Node;

const NodeId a{"a"}, b{"b"};
constexpr StreamNumber first{1}, second{2};
constexpr Duration limit = 5s;
constexpr Instant start{100s};

Node a_node(const NodeId& id, std::optional<StreamNumber> stream, std::uint32_t workers = 2) {
  Node node;
  node.join.who.node = id;
  node.join.workers = workers;
  node.stream = stream;
  node.ready = true;
  node.arrived = start;
  return node;
}

}  // namespace

TEST_CASE("the counts follow from the nodes", "[node_table]") {
  NodeTable all;
  all.open(first, false, limit, start);
  Node& node = all.enter(a, a_node(a, first));
  CHECK(all.waiting() == 1);
  CHECK(all.connected() == 1);
  CHECK(all.newcomers() == std::set{std::pair{start, a}});
  SECTION("a member that has a world neither waits nor is ready for the next one") {
    all.change(node, [](Node& n) { n.member = true, n.ready = false; });
    CHECK(all.waiting() == 0);
    CHECK(all.late() == 1);
    CHECK(all.newcomers().empty());
    all.change_members([](Node& n) { n.ready = true; });
    CHECK(all.late() == 0);
    CHECK(all.waiting() == 1);
    CHECK(all.newcomers().empty());  // a survivor
  }
  SECTION("a node without a stream does not wait") {
    all.change(node, [](Node& n) { n.stream.reset(), n.broken = start + 1s; });
    CHECK(all.waiting() == 0);
    CHECK(all.connected() == 0);
    CHECK(all.broken() == std::set{std::pair{start + 1s, a}});
  }
  SECTION("a node that is excluded does not wait") {
    all.change(node, [](Node& n) { n.excluded = true; });
    CHECK(all.waiting() == 0);
    CHECK(all.connected() == 1);
  }
  SECTION("a node without workers is an observer") {
    all.open(second, false, limit, start);
    all.enter(b, a_node(b, second, 0));
    CHECK(all.observers() == 1);
    CHECK(all.waiting() == 1);
  }
  SECTION("a node that is gone does not count") {
    all.erase(a);
    CHECK(all.waiting() == 0);
    CHECK(all.connected() == 0);
    CHECK(all.newcomers().empty());
    CHECK(all.find(a) == nullptr);
  }
}

TEST_CASE("a node is silent when nothing was heard on its stream for the limit", "[node_table]") {
  NodeTable all;
  all.open(first, false, limit, start);
  all.set_speaker(first, a);
  all.enter(a, a_node(a, first));
  all.open(second, false, limit, start);
  CHECK(all.next_silence() == start + limit);
  CHECK(all.silent(limit, start + limit - 1ns).nodes.empty());
  all.heard(first, start + 2s);
  SECTION("a stream on which nobody speaks is to be closed") {
    const auto silent = all.silent(limit, start + limit);
    CHECK(silent.nodes.empty());
    CHECK(silent.streams == std::vector{second});
    CHECK(all.next_silence() == start + 2s + limit);
  }
  SECTION("and a node is named once") {
    CHECK(all.silent(limit, start + 2s + limit).nodes == std::vector{a});
    CHECK(all.silent(limit, start + 3s + limit).nodes.empty());
  }
  SECTION("a stream in this process is never silent") {
    NodeTable own;
    own.open(first, true, limit, start);
    CHECK_FALSE(own.next_silence());
    CHECK(own.silent(limit, start + 1h).streams.empty());
    CHECK(own.is_in_process(own.enter(a, a_node(a, first))));
  }
}

TEST_CASE("a stall of this process is not the silence of the nodes", "[node_table]") {
  const Timeouts timeouts;
  NodeTable all;
  all.open(first, false, timeouts.heartbeat_limit, start);
  all.set_speaker(first, a);
  all.enter(a, a_node(a, first));
  Node broken = a_node(b, {});
  broken.broken = broken.broken_since = start;
  all.enter(b, broken);
  SECTION("a long one begins everything anew") {
    const Instant now = start + 1min;
    all.compensate_stall(1min, timeouts, now);
    CHECK(all.silent(timeouts.heartbeat_limit, now).nodes.empty());
    CHECK(all.broken() == std::set{std::pair{now, b}});
  }
  SECTION("a short one gives only those with a broken stream their grace again") {
    const Instant now = start + 100ms;
    all.compensate_stall(100ms, timeouts, now);
    CHECK(all.stream(first).heard == start);
    CHECK(all.broken() == std::set{std::pair{now, b}});
  }
  SECTION("but not for ever") {
    const Instant now = start + timeouts.heartbeat_limit;
    all.compensate_stall(100ms, timeouts, now);
    CHECK(all.broken() == std::set{std::pair{start, b}});
  }
}

}  // namespace elrun::test::node_table
