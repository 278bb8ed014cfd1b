// Before a world, and workers that have not joined it: who waits for whom, until when, and who hangs.
#include "tests/unit/supervisor_node.hpp"

namespace elrun::test::supervisor_start {
namespace {

StoreRequest asks_for_peers() {
  StoreRequest request;
  request.id = 7;
  request.op = StoreOp::all_gather;
  request.generation = generation(1);
  request.keys = {"elrun/comm/addresses"};
  request.count = 4;
  return request;
}

/// Two workers in a world of two nodes; the first is in its session and waits for its peers.
Node waiting(Duration hang_timeout) {
  Node node{2, hang_timeout, HangSign::progress};
  node.on(LinkUp{});
  node.hear(world(1, 2, 2));
  for (std::uint32_t i = 0; i < 2; ++i) node.on(WorkerStarted{LocalRank{i}, 100 + i});
  node.tell(10, Hello{.rank = 2, .world = 4, .is_job = true, .stays = true});
  node.tell(10, asks_for_peers());
  return node;
}

template <class M = WorkersStarting>
std::optional<M> told(const Node& node) {
  for (const Action& a : node.actions)
    if (const auto* send = std::get_if<Send>(&a))
      if (const auto* message = std::get_if<M>(&send->message)) return *message;
  return {};
}

}  // namespace

TEST_CASE("coordinators that come and go before the first generation end the wait for it", "[supervisor][start]") {
  Node node;
  const LinkDown gone{{Code::unreachable, Remedy::retry, "reset"}};
  const auto comes_for = [&](Duration up) {
    node.on(LinkUp{});
    node.hear(Waiting{"1 of 2 nodes; missing: at least 1"});
    node.wait(up);
    node.on(gone);
  };
  node.on(gone);
  for (int i = 0; i < 59; ++i) {
    REQUIRE(node.wait(10s).empty());
    comes_for(9s);
  }
  SECTION("when the join deadline is used up, which was prolonged once where less than 30 s of it were left") {
    CHECK(node.wait(20s - 1ns).empty());
    CHECK(node.wait(1ns) == Words{"leave", "finish 170"});
  }
  SECTION("which is whole again after one that stayed for two leases") {
    comes_for(10s);
    CHECK(node.wait(600s - 1ns).empty());
    CHECK(node.wait(1ns) == Words{"leave", "finish 170"});
  }
}

TEST_CASE("a process that opens a second session, or another one of its rank, is told which of the two it is", "[supervisor][start]") {
  Node node;
  node.start();
  REQUIRE(node.tell(10, Hello{.pid = 100, .rank = 0, .world = 2}) == Words{"welcome 10"});
  const std::uint64_t pid = GENERATE(100u, 300u);
  REQUIRE(node.tell(20, Hello{.pid = pid, .rank = 0, .world = 2}).front() == "refuse 20");
  const Failure why = std::get<Refusal>(std::get<Answer>(node.actions.front()).message).failure;
  CHECK(why.remedy == Remedy::fix_config);
  CHECK(why.code == (pid == 100 ? Code::refused : Code::already_exists));  // `run` ends with 78 on the first
  CHECK_THAT(why.what, Catch::Contains(pid == 100 ? "this process, rank 0, has a session already" : "only one process per rank"));
}

TEST_CASE("who waits for its peers does not hang, however long; once they are there its time begins", "[supervisor][hang][start]") {
  Node node = waiting(10s);
  node.tell(11, Hello{.rank = 3, .world = 4, .is_job = true, .stays = true});
  node.tell(11, asks_for_peers());
  for (int i = 0; i < 5; ++i) CHECK(node.wait(10s).empty());
  node.wait(5s);
  StoreReply reply;
  reply.id = 7;
  for (const ConnectionId worker : {10, 11}) node.hear(StoreResult{worker, reply});
  CHECK(node.wait(9s).empty());
  CHECK(node.wait(1s) == Words{"stacks 0", "stacks 1"});
}

TEST_CASE("a Job's worker that never opens its session hangs, and nobody who waits for it", "[supervisor][hang][start]") {
  SECTION("the other worker of its node goes on in the next generation") {
    Node node = waiting(10s);
    CHECK(node.wait(10s) == Words{"stacks 1"});
    CHECK(node.said.find(
              "no sign of progress for 10.0 s of rank 3 (node n, pid 101) in generation 1: this is a hang. What they are doing follows") ==
          0);
    CHECK(node.wait(5s) == Words{"signal 1 6"});
    CHECK(node.ended(1, {.signal = SIGABRT}) == Words{"failed 1 174"});
    CHECK(told<WorkerFailed>(node)->before_session);
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "signal 1 9"});
  }
  SECTION("the coordinator tells a node whose workers all hang that the job is a Job") {
    Node node{1, 10s, HangSign::progress};
    node.on(LinkUp{});
    node.hear(world(1, 1, 2));
    node.on(WorkerStarted{LocalRank{0}, 100});
    SECTION("else it may be a plain program") { CHECK(node.wait(1000s).empty()); }
    SECTION("told") {
      node.wait(9s);
      CHECK(node.hear(Waiting{"1 node waits for rank 1 of node n", generation(1), true}).empty());
      CHECK(node.said == "1 node waits for rank 1 of node n\n");
      CHECK(node.wait(1s) == Words{"stacks 0"});
      CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"signal 0 9"});  // it has no state that it could save
    }
  }
}

TEST_CASE("the coordinator hears whose workers have not joined the world, when that takes long", "[supervisor][start]") {
  Node node = waiting(0s);
  node.wait(9s);
  CHECK_FALSE(told(node));
  node.wait(1s);
  REQUIRE(told(node));
  CHECK(told(node)->rank == 3);
  CHECK(told(node)->count == 1);
  CHECK(told(node)->ago == 10s);
  CHECK_FALSE(told(node)->opened);
  CHECK_FALSE(told(node)->watched);
  SECTION("again when its session is open, and when it has asked for its peers") {
    node.tell(11, Hello{.rank = 3, .world = 4, .is_job = true});
    REQUIRE(told(node));
    CHECK(told(node)->opened);
    node.tell(11, asks_for_peers());
    REQUIRE(told(node));
    CHECK(told(node)->count == 0);
  }
  SECTION("a session without a Job has nothing to join") {
    node.tell(11, Hello{.rank = 3, .world = 4});
    REQUIRE(told(node));
    CHECK(told(node)->count == 0);
  }
  SECTION("again to the coordinator that comes") {
    node.on(LinkDown{});
    node.on(LinkUp{});
    CHECK_FALSE(told(node));
    node.hear(Resumed{generation(1), true});
    REQUIRE(told(node));
  }
  SECTION("not when it ends") {
    node.ended(1, {.exit_code = 1});
    REQUIRE(told(node));
    CHECK(told(node)->count == 0);
  }
}

}  // namespace elrun::test::supervisor_start
