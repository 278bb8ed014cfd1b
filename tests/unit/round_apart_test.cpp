// Two members that cannot reach each other, though both reach the coordinator; and who is excluded because of it.
#include "rendezvous/round/exclusion.hpp"
#include "tests/support/round_bench.hpp"

namespace elrun::test {
namespace {

using Catch::Matchers::Contains;

/// A world of "a", "b" and "c", two workers each, which runs.
struct Three : RoundBench {
  StreamNumber a, b, c;
  explicit Three(RoundOptions round_options = {.nodes_min = 2, .nodes_max = 3}, const std::string& in_process = {})
      : RoundBench{round_options}, a{enter("a", in_process)}, b{enter("b", in_process)}, c{enter("c", in_process)} {
    REQUIRE(world(a) == "a b c");
    pass(1s);
  }
  StreamNumber enter(const std::string& name, const std::string& in_process) {
    return name == in_process ? join_in_process(name) : join(name);
  }
  void cannot_reach(StreamNumber stream, std::uint32_t rank, std::uint32_t peer, bool is_job = true) {
    say(stream, PeerUnreachable{generation(), rank, peer, is_job, "nothing that was sent to it was answered in 15 s"});
  }
  [[nodiscard]] std::string why(StreamNumber stream) const { return last<Revoke>(stream) ? last<Revoke>(stream)->why.what : std::string{}; }
};

std::vector<std::string> excluded(std::set<ApartNodes> apart, const std::vector<std::string>& order, const std::string& host = {}) {
  std::vector<NodeId> nodes;
  for (const std::string& name : order) nodes.emplace_back(name);
  std::vector<std::string> names;
  for (const NodeId& id : whom_to_exclude(std::move(apart), nodes, host.empty() ? std::nullopt : std::optional{NodeId{host}}))
    names.push_back(id.value());
  return names;
}
ApartNodes apart(const std::string& a, const std::string& b) { return {NodeId{a}, NodeId{b}}; }
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("of nodes that are apart as few are excluded as it takes, the later before the earlier", "[exclusion]") {
  CHECK(excluded({}, {"a", "b"}).empty());
  CHECK(excluded({apart("a", "b")}, {"a", "b", "c"}) == Names{"b"});
  CHECK(excluded({apart("a", "b")}, {"b", "a", "c"}) == Names{"a"});       // by rank, not by name
  CHECK(excluded({apart("a", "b")}, {"a", "b", "c"}, "b") == Names{"a"});  // the coordinator's own node stays
  CHECK(excluded({apart("a", "b"), apart("a", "c"), apart("a", "d")}, {"a", "b", "c", "d"}) == Names{"a"});
  CHECK(excluded({apart("a", "b"), apart("a", "c")}, {"a", "b", "c"}, "a") == Names{"a"});  // but not at the cost of more
  CHECK(excluded({apart("a", "c"), apart("a", "d"), apart("b", "c"), apart("b", "d")}, {"a", "b", "c", "d"}) == Names{"d", "c"});
}

TEST_CASE("an exclusion that holds is never dropped when the list is full; one that is over is", "[exclusion]") {
  Exclusions exclusions;
  const Instant now{1h};
  const auto name = [](std::size_t i) { return NodeId{"n" + std::to_string(i)}; };
  for (std::size_t i = 0; i < exclusions_max; ++i)
    static_cast<void>(exclusions.exclude(name(i), 1, "why", {}, now + std::chrono::seconds{i}));
  static_cast<void>(exclusions.exclude(name(exclusions_max), 1, "why", {}, now));
  for (std::size_t i = 0; i <= exclusions_max; ++i) REQUIRE(exclusions.of(name(i), 1) != nullptr);
  // The one that is over is forgotten for the next node, so it is out for the shortest time again.
  exclusions.let_in(name(7), now);
  static_cast<void>(exclusions.exclude(NodeId{"other"}, 1, "why", {}, now));
  CHECK(exclusions.of(name(0), 1) != nullptr);
  CHECK(exclusions.exclude(name(7), 1, "why", {}, now) == exclusion_least);
}

TEST_CASE("a node is excluded for longer each time, and what is long ago is forgotten", "[exclusion]") {
  Exclusions exclusions;
  const NodeId node{"n"};
  Instant now{1h};
  for (const Duration length : {30s, 60s, 120s, 240s, 480s, 960s, 1800s, 1800s}) {
    CHECK(exclusions.exclude(node, 1, "why", {}, now) == length);
    REQUIRE(exclusions.of(node, 1) != nullptr);
    CHECK(exclusions.of(node, 2) == nullptr);  // another process is tried at once
    CHECK(exclusions.next() == now + length);
    CHECK(exclusions.due(now + length - 1ns).empty());
    now += length;
    REQUIRE(exclusions.due(now) == std::vector<NodeId>{node});
    exclusions.let_in(node, now);
    CHECK(exclusions.of(node, 1) == nullptr);
    CHECK_FALSE(exclusions.next());
    now += 20s;
  }
  now += exclusion_forgotten;
  CHECK(exclusions.exclude(node, 1, "why", {NodeId{"x"}, NodeId{"y"}}, now) == exclusion_least);
  exclusions.gone(NodeId{"x"}, now);
  CHECK(exclusions.due(now).empty());
  exclusions.gone(NodeId{"y"}, now);
  CHECK(exclusions.due(now) == std::vector<NodeId>{node});
}

TEST_CASE("two members that cannot reach each other: the job goes on without one of them, at no cost", "[round]") {
  Three bench;
  const bool both = GENERATE(false, true);
  bench.cannot_reach(bench.b, 2, 5);
  if (both) bench.cannot_reach(bench.c, 4, 3);
  bench.pass(apart_gather - 1ms);
  CHECK(bench.count<Revoke>(bench.a) == 0);  // others may say so as well
  bench.pass(1s);
  CHECK_THAT(
      bench.why(bench.a),
      Contains(
          "nodes b and c cannot reach each other, though both reach the coordinator (rank 2 on node b: nothing that was sent to it was answered in 15 s); "
          "the job goes on without c, which is tried again in 30 s"));
  bench.acknowledge(bench.a, "a");
  bench.acknowledge(bench.b, "b");
  CHECK(bench.begun.size() == 1);  // whoever is out may still act for the old one
  bench.acknowledge(bench.c, "c");
  CHECK(bench.world(bench.a) == "a b");
  CHECK(bench.last<World>(bench.a)->restarts.used == 0);
  CHECK_THAT(bench.last<World>(bench.a)->cause, Contains("nodes b and c cannot reach each other"));
  bench.pass(1s);
  CHECK_THAT(bench.last<Waiting>(bench.c)->why, Contains("this node is excluded: it and b cannot reach each other; it is tried again in"));

  SECTION("and is tried again, each time later") {
    bench.pass(28s);
    CHECK(bench.count<Revoke>(bench.a) == 1);
    bench.pass(3s);
    CHECK_THAT(bench.why(bench.a), Contains("the world grows by c"));
    for (const auto& [stream, name] : {std::pair{bench.a, "a"}, std::pair{bench.b, "b"}}) bench.acknowledge(stream, name);
    CHECK(bench.world(bench.c) == "a b c");
    bench.cannot_reach(bench.b, 2, 4);
    bench.pass(4s);
    CHECK_THAT(bench.why(bench.a), Contains("without c, which is tried again in 60 s"));
  }
  SECTION("and at once when the other is gone") {
    bench.say(bench.b, Leave{"SIGTERM"});
    bench.acknowledge(bench.a, "a");
    CHECK(bench.world(bench.a) == "a c");
  }
  SECTION("and at once when the others are too few") {
    bench.break_stream(bench.a);
    bench.pass(1s);
    bench.acknowledge(bench.b, "b");
    CHECK(bench.world(bench.b) == "b c");
  }
  SECTION("another process under its name is tried at once") {
    bench.break_stream(bench.c);
    const auto again = bench.join("c", 2);
    bench.pass(2s);
    for (const auto& [stream, name] : {std::pair{bench.a, "a"}, std::pair{bench.b, "b"}}) bench.acknowledge(stream, name);
    CHECK(bench.world(again) == "a b c");
  }
}

TEST_CASE("whoever is cut off from most is excluded, and the coordinator's own node last", "[round]") {
  SECTION("one from all others") {
    Three bench;
    bench.cannot_reach(bench.b, 2, 0);
    bench.pass(1s);
    bench.cannot_reach(bench.c, 4, 0);
    bench.pass(3s);
    CHECK_THAT(bench.why(bench.b), Contains("the job goes on without a,"));
  }
  SECTION("the coordinator's own") {
    Three bench{{.nodes_min = 2, .nodes_max = 3}, "c"};
    bench.cannot_reach(bench.c, 4, 2);
    bench.pass(3s);
    CHECK_THAT(bench.why(bench.a), Contains("the job goes on without b,"));
  }
}

TEST_CASE("a node that is excluded comes back when its partner is excluded for another one", "[round]") {
  RoundBench bench{{.nodes_min = 2, .nodes_max = 4}};
  const auto a = bench.join("a"), b = bench.join("b"), c = bench.join("c"), d = bench.join("d");
  REQUIRE(bench.world(a) == "a b c d");
  const auto acknowledge = [&](const std::string& names) {
    for (const auto& [stream, name] : {std::pair{a, "a"}, std::pair{b, "b"}, std::pair{c, "c"}, std::pair{d, "d"}})
      if (names.find(name) != std::string::npos) bench.acknowledge(stream, name);
  };
  bench.say(b, PeerUnreachable{bench.generation(), 2, 4, true, "no answer"});
  bench.pass(3s);
  acknowledge("abcd");
  REQUIRE(bench.world(a) == "a b d");
  SECTION("the partner is cut from another one as well") {
    bench.say(b, PeerUnreachable{bench.generation(), 2, 0, true, "no answer"});
    bench.pass(3s);
    CHECK_THAT(bench.last<Revoke>(a)->why.what, Contains("the job goes on without b, which is tried again in 30 s"));
    acknowledge("abd");
    CHECK(bench.world(a) == "a d c");
    bench.pass(1s);
    CHECK_THAT(bench.last<Waiting>(b)->why, Contains("this node is excluded: it and a, c cannot reach each other"));
  }
  SECTION("but not when two others are cut from each other") {
    bench.say(d, PeerUnreachable{bench.generation(), 4, 0, true, "no answer"});
    bench.pass(3s);
    acknowledge("abd");
    CHECK(bench.world(a) == "a b");
    CHECK(bench.count<World>(c) == 1);
  }
}

TEST_CASE("where nobody can be spared the pair is named, and costs restarts until the verdict names it", "[round]") {
  Three bench{{.nodes_min = 3, .nodes_max = 3, .max_restarts = 1}};
  bench.cannot_reach(bench.b, 2, 4);
  bench.pass(3s);
  CHECK_THAT(bench.why(bench.a), Contains("nodes b and c cannot reach each other") &&
                                     Contains("without one of them fewer than 3 nodes would be left; restart 1 of 1"));
  for (const auto& [stream, name] : {std::pair{bench.a, "a"}, std::pair{bench.b, "b"}, std::pair{bench.c, "c"}})
    bench.acknowledge(stream, name);
  REQUIRE(bench.world(bench.a) == "a b c");
  bench.cannot_reach(bench.c, 4, 2);
  bench.pass(3s);
  for (const auto& [stream, name] : {std::pair{bench.a, "a"}, std::pair{bench.b, "b"}, std::pair{bench.c, "c"}})
    bench.acknowledge(stream, name);
  REQUIRE(bench.round.verdict());
  CHECK(bench.round.verdict()->exit_code == 1);
  CHECK_THAT(bench.round.verdict()->report, Contains("nodes b and c cannot reach each other"));
}

TEST_CASE("a spare takes the place of one of two that cannot reach each other", "[round]") {
  Three bench{{.nodes_min = 3, .nodes_max = 3}};
  const auto d = bench.join("d");
  bench.cannot_reach(bench.b, 2, 4);
  bench.pass(3s);
  for (const auto& [stream, name] : {std::pair{bench.a, "a"}, std::pair{bench.b, "b"}, std::pair{bench.c, "c"}})
    bench.acknowledge(stream, name);
  CHECK(bench.world(d) == "a b d");
}

TEST_CASE("a peer whose node is silent here too is lost, not excluded", "[round]") {
  Three bench;
  bench.silent.insert(bench.c);
  bench.pass(1s);
  bench.cannot_reach(bench.b, 2, 4);
  bench.pass(5s);
  CHECK_THAT(bench.why(bench.a), Contains("node c is lost: nothing was heard of it"));
}

TEST_CASE("a program that only ends when it cannot reach a peer costs nothing, nor do those that end with it", "[round]") {
  Three bench{{.nodes_min = 2, .nodes_max = 3, .max_restarts = 0}};
  bench.cannot_reach(bench.b, 2, 4, false);
  bench.say(bench.b, WorkerFailed{bench.generation(), 0, 1, "exit code 1", false, Duration{0}, {}});
  CHECK_THAT(bench.why(bench.a), Contains("nodes b and c cannot reach each other") && Contains("the job goes on without c"));
  bench.say(bench.a, WorkerFailed{bench.generation(), 0, 1, "exit code 1", false, Duration{0}, {}});
  for (const auto& [stream, name] : {std::pair{bench.a, "a"}, std::pair{bench.b, "b"}, std::pair{bench.c, "c"}})
    bench.acknowledge(stream, name);
  CHECK_FALSE(bench.round.verdict());
  CHECK(bench.world(bench.a) == "a b");
}

TEST_CASE("a node that is needed although its workers fail brings nobody back who cannot reach another", "[round][exclude]") {
  RoundBench bench{{.nodes_min = 2, .nodes_max = 4}};
  const auto a = bench.join("a"), b = bench.join("b"), c = bench.join("c"), d = bench.join("d");
  REQUIRE(bench.world(a) == "a b c d");
  bench.say(a, WorkersAreJob{bench.generation()});
  const auto acknowledge = [&](const std::string& names) {
    for (const auto& [stream, name] : {std::pair{a, "a"}, std::pair{b, "b"}, std::pair{c, "c"}, std::pair{d, "d"}})
      if (names.find(name) != std::string::npos) bench.acknowledge(stream, name);
  };
  bench.say(d, PeerUnreachable{bench.generation(), 6, 4, true, "no answer"});
  bench.pass(3s);
  acknowledge("abcd");
  REQUIRE(bench.world(a) == "a b c");
  for (std::uint32_t i = 0; i < exclude_after; ++i) {
    bench.say(b, WorkerFailed{.generation = bench.generation(), .exit_code = 127, .what = "exit code 127", .before_session = true});
    acknowledge("abc");
  }
  REQUIRE(bench.world(a) == "a c");
  CHECK(bench.last<World>(a)->restarts.used == 0);
  SECTION("each comes back when its own time is over") {
    bench.pass(exclusion_first + 1s);
    acknowledge("ac");
    CHECK(bench.world(a) == "a c b");
    CHECK(bench.count<World>(d) == 1);
    bench.pass(exclusion_least);
    acknowledge("abc");
    CHECK(bench.world(a) == "a c b d");
  }
  SECTION("the others are too few") {
    bench.say(a, Leave{"SIGTERM"});
    acknowledge("c");
    bench.pass(exclusion_first);  // a may come back
    CHECK(bench.world(c) == "c b");
    CHECK(bench.count<World>(d) == 1);
    SECTION("and too few with it as well") {
      bench.say(b, Leave{"SIGTERM"});
      acknowledge("c");
      CHECK(bench.world(c) == "c d");
    }
  }
}

TEST_CASE("what is said of a peer counts only in its generation, of another node and of a rank that there is, by a rank of that node",
          "[round]") {
  Three bench;
  bench.say(bench.b, PeerUnreachable{{7, {{1, 2}}}, 2, 4, true, "why"});
  bench.cannot_reach(bench.b, 2, 3);
  bench.cannot_reach(bench.b, 2, 6);
  bench.cannot_reach(bench.b, 1, 4);          // a rank of a
  bench.cannot_reach(bench.b, 5, 0);          // and one of c
  bench.cannot_reach(bench.b, 6, 4);          // nobody's
  bench.cannot_reach(bench.b, 4'000'000, 4);  // its place among the workers of a node would be out of bounds in a verdict
  bench.pass(10s);
  CHECK(bench.count<Revoke>(bench.a) == 0);
}

TEST_CASE("of two nodes that cannot reach each other one is done and leaves: the other's failure is judged without it", "[round]") {
  Three bench;
  bench.cannot_reach(bench.a, 0, 2);
  bench.say(bench.b, WorkersDone{bench.generation(), true});
  bench.say(bench.b, Leave{"SIGTERM came"});
  SECTION("the pair is forgotten") {
    bench.pass(10s);
    CHECK(bench.begun.size() == 1);
    CHECK(bench.why(bench.a).empty());
  }
  SECTION("a worker fails") {
    bench.say(bench.a, WorkerFailed{bench.generation(), 0, 1, "exit code 1", true, {}, {}});
    CHECK_THAT(bench.why(bench.a), Contains("exit code 1"));
  }
}

}  // namespace elrun::test
