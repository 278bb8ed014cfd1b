// A node starts its workers before it has a place in the world.

#include "tests/unit/supervisor_node.hpp"

namespace elrun::test::supervisor_prepare {
namespace {

constexpr std::uint64_t beside = 7;

/// As if this node, with ranks 4 and 5, were the last of three.
World as_if_last() { return world(beside, 2, 3); }

Message hello(std::uint32_t worker, std::uint32_t pid, bool stays = true) {
  return Hello{.pid = pid, .rank = 4 + worker, .world = 6, .is_job = true, .stays = stays, .says_ready = true};
}

/// Told to prepare; its two workers, with pids 100 and 101, start.
Node preparing(Duration hang_timeout = Duration{0}) {
  Node node{2, hang_timeout, HangSign::progress};
  node.on(LinkUp{});
  CHECK(node.hear(Prepare{as_if_last()}) == Words{"spawn 0 beside", "spawn 1 beside"});
  for (std::uint32_t i = 0; i < 2; ++i) node.on(WorkerStarted{LocalRank{i}, 100 + i});
  return node;
}

/// Both have opened their sessions, on connections 20 and 21.
Node opened() {
  Node node = preparing();
  for (std::uint32_t i = 0; i < 2; ++i)
    CHECK(node.tell(20 + i, hello(i, 100 + i)) ==
          Words{fmt::format("revoke {}", 20 + i), fmt::format("welcome {}", 20 + i), fmt::format("revoke {}", 20 + i)});
  return node;
}

Node ready() {
  Node node = opened();
  CHECK(node.tell(20, ReadyForPlace{generation(beside)}).empty());
  CHECK(node.tell(21, ReadyForPlace{generation(beside)}) == Words{"more"});
  return node;
}

World with_a_place() { return world(beside + 1, 2, 3); }

}  // namespace

TEST_CASE("its workers start as pending ones, and it says when all are ready", "[supervisor][prepare]") {
  Node node = ready();
  CHECK_FALSE(node.wake_at());
  CHECK(node.hear(with_a_place()) == Words{"welcome 20", "welcome 21"});
  CHECK(node.said.find("2 that were started meanwhile join") != std::string::npos);
  const Place second = std::get<Welcome>(std::get<Answer>(node.actions.back()).message).place;
  CHECK(second.membership == Membership{generation(beside + 1), Rank{5}, WorldSize{6}});
}

TEST_CASE("their environment is that of the last node's workers", "[supervisor][prepare]") {
  Node node{2};
  node.on(LinkUp{});
  node.hear(Prepare{as_if_last()});
  CHECK(node.said.find("generation 7 runs: 2 workers are started here meanwhile, and this node joins when all are ready") == 0);
  const auto& spawn = std::get<Spawn>(node.actions.back());
  CHECK(spawn.is_pending);
  CHECK(spawn.place == 1);
  CHECK(spawn.world == as_if_last());
}

TEST_CASE("a worker that ends before it is ready is told once no other one is starting any more", "[supervisor][prepare]") {
  Node node = opened();
  CHECK(node.ended(0, {.exit_code = 3}) == Words{"signal 0 9", "release 0"});
  CHECK(node.said.find("worker 0, which was started beside generation 7 (node n, pid 100) ended by exit code 3") == 0);
  CHECK(node.tell(21, ReadyForPlace{generation(beside)}) == Words{"not prepared 3"});
  SECTION("it alone is started again when the coordinator says so") {
    CHECK(node.hear(Prepare{as_if_last()}) == Words{"spawn 0 beside"});
    node.on(WorkerStarted{LocalRank{0}, 200});
    node.tell(30, hello(0, 200));
    CHECK(node.tell(30, ReadyForPlace{generation(beside)}) == Words{"more"});
  }
  SECTION("or with a world") { CHECK(node.hear(with_a_place()) == Words{"spawn 0", "welcome 21"}); }
}

TEST_CASE("a program that ends with 0 before it has a place has failed", "[supervisor][prepare]") {
  Node node = preparing();
  node.ended(0);
  CHECK(node.ended(1) == Words{"signal 1 9", "release 1", "not prepared 0"});
}

TEST_CASE("a worker that ends after all were ready is told at once", "[supervisor][prepare]") {
  Node node = ready();
  CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1", "not prepared 137"});
}

namespace {

/// A node of two workers that had places in generation 1, and has none in the one that runs. Both have acknowledged, on connections 10 and 11.
Node left_out() {
  Node node{2};
  node.on(LinkUp{});
  node.hear(world(1, 2));
  for (std::uint32_t i = 0; i < 2; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, Hello{.pid = 100 + i, .rank = i, .world = 2, .is_job = true, .stays = true, .says_ready = true});
  }
  node.hear(Revoke{generation(1), revoked});
  for (std::uint32_t i = 0; i < 2; ++i) node.tell(10 + i, GenerationOver{generation(1), {.code = Code::generation_over}});
  return node;
}

}  // namespace

TEST_CASE("workers that stay are as good as prepared", "[supervisor][prepare]") {
  Node node = left_out();
  CHECK(node.hear(Prepare{as_if_last()}) == Words{"more"});
  SECTION("one that ends then is told") {
    CHECK(node.ended(0, {.signal = SIGKILL}) == Words{"signal 0 9", "release 0", "not prepared 137"});
    CHECK(node.hear(Prepare{as_if_last()}) == Words{"spawn 0 beside"});
    node.on(WorkerStarted{LocalRank{0}, 200});
    SECTION("and so is one that ends while another one starts") {
      CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1"});
      node.tell(30, hello(0, 200));
      CHECK(node.tell(30, ReadyForPlace{generation(beside)}) == Words{"not prepared 137"});
    }
  }
}

TEST_CASE("a pending worker that is ready by then takes the place, and none is started for which there is no place",
          "[supervisor][prepare]") {
  Node node{2};
  node.on(LinkUp{});
  node.hear(world(1, 2));
  for (std::uint32_t i = 0; i < 2; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, Hello{.pid = 100 + i, .rank = i, .world = 2, .is_job = true, .stays = true, .says_ready = true});
  }
  node.ended(0, {.signal = SIGKILL});
  node.hear(Revoke{generation(1), revoked});
  node.tell(11, GenerationOver{generation(1), {.code = Code::generation_over}});
  CHECK(node.hear(world(2, 1)) == Words{"welcome 11", "spawn 0 beside"});
  node.on(WorkerStarted{LocalRank{0}, 200});
  node.tell(20, Hello{.pid = 200, .rank = 0, .world = 2, .is_job = true, .stays = true, .says_ready = true});
  node.ended(1, {.signal = SIGKILL});
  node.hear(Revoke{generation(2), revoked});
  CHECK(node.wanted == 1);
  World beside = world(3, 1, 2);
  SECTION("it is ready first") {
    CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"more"});
    CHECK(node.hear(Prepare{beside}) == Words{"more"});
  }
  SECTION("another one is started first") {
    CHECK(node.hear(Prepare{beside}) == Words{"spawn 1 beside"});
    CHECK(std::get<Spawn>(node.actions.back()).place == 0);
  }
}

TEST_CASE("a worker that stayed and ends takes back what the Join said", "[supervisor][prepare]") {
  Node node = left_out();
  CHECK(std::get<Join>(std::get<Send>(node.actions.back()).message).preparedness == Preparedness::ready);
  CHECK(node.ended(0, {.signal = SIGKILL}) == Words{"signal 0 9", "release 0", "not prepared 137"});
}

TEST_CASE("a worker that is ending when the node is told to prepare is told when it has ended", "[supervisor][prepare]") {
  Node node = left_out();
  CHECK(node.on(WorkerHungUp{10}) == Words{"caller gone", "signal 0 9"});
  CHECK(node.hear(Prepare{as_if_last()}).empty());
  CHECK(node.ended(0, {.signal = SIGKILL}) == Words{"signal 0 9", "release 0", "not prepared 137"});
}

TEST_CASE("what the coordinator has to know is said again on a new line", "[supervisor][prepare]") {
  SECTION("they start") {
    Node node = opened();
    node.on(LinkDown{});
    CHECK(node.on(LinkUp{}) == Words{"join last 0 preparing"});
    node.tell(20, ReadyForPlace{generation(beside)});
    CHECK(node.tell(21, ReadyForPlace{generation(beside)}) == Words{"more"});
  }
  SECTION("they became ready meanwhile") {
    Node node = opened();
    node.on(LinkDown{});
    node.tell(20, ReadyForPlace{generation(beside)});
    CHECK(node.tell(21, ReadyForPlace{generation(beside)}).empty());
    CHECK(node.on(LinkUp{}) == Words{"join last 0 preparing", "more"});
  }
  SECTION("one ended meanwhile") {
    Node node = opened();
    node.on(LinkDown{});
    node.tell(20, ReadyForPlace{generation(beside)});
    node.ended(1, {.exit_code = 1});
    CHECK(node.on(LinkUp{}) == Words{"join last 0 preparing", "not prepared 1"});
  }
}

TEST_CASE("workers that are not ready within start_timeout are killed", "[supervisor][prepare]") {
  Node node = opened();
  node.tell(20, ReadyForPlace{generation(beside)});
  CHECK(node.wait(300s) == Words{"stacks 1"});
  CHECK(node.said.find("(start_timeout) of worker 1, which was started beside generation 7") != std::string::npos);
  CHECK(node.wait(Timeouts{}.stacks) == Words{"signal 1 9"});
  CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1", "not prepared 174"});
}

TEST_CASE("a world that counts a worker in that is not ready: it gets its place as soon as it can be told", "[supervisor][prepare]") {
  Node node = preparing();
  node.tell(20, hello(0, 100));
  CHECK(node.hear(with_a_place()) == Words{"welcome 20"});
  CHECK(node.tell(21, hello(1, 101)) == Words{"revoke 21", "welcome 21", "revoke 21", "welcome 21"});
  const Place second = std::get<Welcome>(std::get<Answer>(node.actions.back()).message).place;
  CHECK(second.membership == Membership{generation(beside + 1), Rank{5}, WorldSize{6}});
  CHECK(node.ended(1, {.exit_code = 3}) == Words{"failed 1 3 job"});
}

TEST_CASE("when the job ends, or this node leaves, they are killed", "[supervisor][prepare]") {
  SECTION("a verdict") {
    Node node = opened();
    CHECK(node.hear(Verdict{}) == Words{"signal 0 9", "signal 1 9"});
    node.ended(0, {.signal = SIGKILL});
    CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 0");
  }
  SECTION("a signal") {
    Node node = ready();
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leave", "signal 0 9", "signal 1 9"});
    node.ended(0, {.signal = SIGKILL});
    CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 143");
  }
}

TEST_CASE("a program whose session cannot go on in another generation is refused", "[supervisor][prepare]") {
  Node node = preparing();
  CHECK(node.tell(20, hello(0, 100, false)) == Words{"refuse 20"});
}

}  // namespace elrun::test::supervisor_prepare
