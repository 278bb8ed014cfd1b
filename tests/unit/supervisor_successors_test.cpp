// Where starts are quick, a node brings the successors of its dead workers along into the next world (SuccessorWait).

#include "tests/unit/supervisor_four.hpp"

namespace elrun::test::supervisor_pending {

/// As `running`, and as quick as most: a start takes 10 ms, a step 300.
Node running_with_quick_starts(std::int32_t max_restarts = -1) {
  Node node{4, max_restarts};
  node.on(LinkUp{});
  node.hear(world(1, 4));
  node.now += 10ms;
  for (std::uint32_t i = 0; i < 4; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, Hello{.pid = 100 + i, .rank = i, .world = 4, .is_job = true, .stays = true, .says_ready = true});
    node.tell(10 + i,
              StoreRequest{.id = 1, .op = StoreOp::all_gather, .generation = generation(1), .keys = {"peers"}, .rank = i, .count = 4});
  }
  for (const std::uint64_t step : {1u, 2u}) {
    node.now += 300ms;
    for (std::uint32_t i = 0; i < 4; ++i) node.tell(10 + i, StepDecided{generation(1), step});
  }
  return node;
}

/// Worker 1 has died there, and its successor, with pid 201, has said hello on connection 20. The node waits for it, 100 ms at most.
Node waiting_for_one() {
  Node node = running_with_quick_starts();
  node.ended(1, {.signal = SIGKILL});
  CHECK(end(node, 1, {10, 12, 13}) == Words{"release 1", "spawn 1 beside"});
  node.on(WorkerStarted{LocalRank{1}, 201});
  CHECK(node.tell(20, successor) == Words{"revoke 20", "welcome 20", "revoke 20"});
  return node;
}

TEST_CASE("where starts are quick, a node joins the next world with the successor, and the world changes once", "[supervisor][pending]") {
  Node node = waiting_for_one();
  node.now += 10ms;
  CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"join last 1"});
  CHECK(node.wanted == 4);
  CHECK(node.hear(world(2, 4)) == Words{"welcome 10", "welcome 20", "welcome 12", "welcome 13"});
  CHECK(node.wait(1h).empty());
}

TEST_CASE("such a successor's environment says why it was started", "[supervisor][pending]") {
  Node node = running_with_quick_starts();
  node.ended(1, {.signal = SIGKILL});
  end(node, 1, {10, 12, 13});
  const auto at = std::ranges::find_if(node.actions, [](const Action& action) { return std::holds_alternative<Spawn>(action); });
  REQUIRE(at != node.actions.end());
  const Spawn spawn = std::get<Spawn>(*at);
  CHECK(spawn.is_pending);
  CHECK(spawn.world.generation == generation(1));
  CHECK(spawn.world.seat.world_size == 4);
  CHECK(spawn.world.restarts.generations == world(2, 4).restarts.generations);
  CHECK(spawn.world.cause == revoked.what);
  CHECK(spawn.node_restarts == 1);
  node.on(WorkerStarted{LocalRank{1}, 201});
  node.tell(20, successor);
  CHECK(place_in(node.actions[1]).restart_count == spawn.world.restarts.generations);  // and so does its session
}

TEST_CASE("a node waits as well when the word of the generation's only new step comes behind the loss", "[supervisor][pending]") {
  Node node = waiting_for_one();
  node.tell(20, ReadyForPlace{generation(1)});
  node.hear(world(2, 4));
  node.now += 300ms;
  node.ended(3, {.signal = SIGKILL});
  node.hear(Revoke{generation(2), revoked});
  CHECK(node.tell(10, StepDecided{generation(2), 3}) == Words{"progress 3"});
  for (const ConnectionId staying : {10u, 20u}) node.tell(staying, acknowledgement(2));
  CHECK(node.tell(12, acknowledgement(2)) == Words{"release 3", "spawn 3 beside"});
}

TEST_CASE("a successor that is not as quick this time is pending, and the others go on without it", "[supervisor][pending]") {
  Node node = waiting_for_one();
  CHECK(node.wake_at() == node.now + 100ms);  // a step of 300 ms takes the three others 400
  CHECK(node.wait(99ms).empty());
  CHECK(node.wait(1ms) == Words{"join last 1"});
  CHECK(node.wanted == 3);
  CHECK(node.hear(world(2, 3)) == Words{"welcome 10", "welcome 12", "welcome 13"});
  node.now += 1s;
  CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"more"});
  SECTION("and the next one is not waited for") {
    for (const std::uint64_t step : {3u, 4u}) {
      node.now += 300ms;
      node.tell(10, StepDecided{generation(2), step});
    }
    node.ended(3, {.signal = SIGKILL});
    CHECK(end(node, 2, {10, 12}) == Words{"release 3", "join last 2"});
  }
}

TEST_CASE("a node joins at once when the successor that it waits for dies, and the next world waits for another one",
          "[supervisor][pending]") {
  Node node = waiting_for_one();
  CHECK(node.ended(1, {.exit_code = 1}) == Words{"signal 1 9", "release 1", "join last 1"});
  CHECK(node.wanted == 4);
  CHECK(node.hear(world(2, 4)) == Words{"welcome 10", "spawn 1", "welcome 12", "welcome 13"});
}

TEST_CASE("a node waits for all successors together", "[supervisor][pending]") {
  Node node = running_with_quick_starts();
  node.ended(1, {.signal = SIGKILL});
  node.ended(2, {.signal = SIGKILL});
  CHECK(end(node, 1, {10, 13}) == Words{"release 1", "release 2", "spawn 1 beside", "spawn 2 beside"});
  for (const std::uint32_t i : {1u, 2u}) {
    node.on(WorkerStarted{LocalRank{i}, 200 + i});
    node.tell(20 + i, Hello{.pid = 200 + i, .rank = i, .world = 4, .is_job = true, .stays = true, .says_ready = true});
  }
  CHECK(node.wake_at() == node.now + 300ms);  // two do the work of four
  CHECK(node.tell(22, ReadyForPlace{generation(1)}).empty());
  SECTION("both are ready") {
    CHECK(node.tell(21, ReadyForPlace{generation(1)}) == Words{"join last 1"});
    CHECK(node.wanted == 4);
  }
  SECTION("one is") {
    CHECK(node.wait(300ms) == Words{"join last 1"});
    CHECK(node.wanted == 3);
  }
}

TEST_CASE("the successor of a pending worker that died has the same environment", "[supervisor][pending]") {
  Node node = waiting_for_one();
  CHECK(node.wait(100ms) == Words{"join last 1"});
  node.ended(1, {.exit_code = 1});
  CHECK(node.hear(world(2, 3)) == Words{"welcome 10", "welcome 12", "welcome 13", "spawn 1 beside"});
  CHECK(std::get<Spawn>(node.actions.back()).place == 1);
}

TEST_CASE("nor has it a place that the world beside which it is started does not have", "[supervisor][pending]") {
  Node node = running();
  node.ended(3, {.signal = SIGKILL});
  end(node, 1, {10, 11, 12});
  node.hear(world(2, 3));  // worker 3 is pending, with the environment of rank 3 of 4
  node.on(WorkerStarted{LocalRank{3}, 203});
  node.ended(0, {.signal = SIGKILL});
  CHECK(end(node, 2, {11, 12}) == Words{"release 0", "join last 2"});
  node.ended(3, {.exit_code = 1});
  unsigned spawned = 0;
  node.hear(world(3, 2));
  for (const Action& action : node.actions)
    if (const auto* spawn = std::get_if<Spawn>(&action)) {
      ++spawned;
      CHECK(spawn->place < spawn->world.seat.world_size);
    }
  CHECK(spawned == 2);
}

TEST_CASE("a successor that was waited for and fails before the next step belongs to the failure before", "[supervisor][pending]") {
  Node node = waiting_for_one();
  node.tell(20, ReadyForPlace{generation(1)});
  node.hear(world(2, 4));
  const auto belongs = [&] {
    node.ended(1, {.exit_code = 1});
    for (const Action& action : node.actions)
      if (const auto* send = std::get_if<Send>(&action))
        if (const auto* failed = std::get_if<WorkerFailed>(&send->message)) return failed->before_return;
    throw std::logic_error{"nothing was reported"};
  };
  SECTION("before it") { CHECK(belongs()); }
  SECTION("not after it") {
    node.tell(10, StepDecided{generation(2), 3});
    CHECK_FALSE(belongs());
  }
}

TEST_CASE("a worker that fails in its first step again holds nobody up", "[supervisor][pending]") {
  Node node = waiting_for_one();
  node.tell(20, ReadyForPlace{generation(1)});
  node.hear(world(2, 4));
  node.ended(1, {.exit_code = 1});
  CHECK(end(node, 2, {10, 12, 13}) == Words{"release 1", "join last 2"});
  CHECK(node.wanted == 3);
}

TEST_CASE("no successor is started before it is known that the job goes on", "[supervisor][pending]") {
  SECTION("a Job with this exit code is not restarted") {
    Node node = running_with_quick_starts();
    const int code = GENERATE(exit_code_configuration, exit_code_checkpoint_too_old);
    node.ended(1, {.exit_code = code});
    CHECK(end(node, 1, {10, 12, 13}) == Words{"release 1", "join last 1"});
  }
  SECTION("no job is, with --max_restarts 0") {
    Node node = running_with_quick_starts(0);
    node.ended(1, {.signal = SIGKILL});
    CHECK(end(node, 1, {10, 12, 13}) == Words{"release 1", "join last 1"});
  }
}

TEST_CASE("nobody waits for successors where no worker died", "[supervisor][pending]") {
  Node node = running_with_quick_starts();
  CHECK(end(node, 1, {10, 11, 12, 13}) == Words{"join last 1"});
}

TEST_CASE("the wait for a successor ends with the node", "[supervisor][pending]") {
  Node node = waiting_for_one();
  SECTION("by a signal") {
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leave", "signal 1 9", "signal 0 15", "signal 2 15", "signal 3 15"});
  }
  SECTION("by a verdict") { node.hear(Verdict{.exit_code = 1, .report = "no restart is left", .generation = generation(1)}); }
  SECTION("by the end of the job, of which a worker that stays says only now") { node.tell(10, JobOver{generation(1)}); }
  CHECK(node.wait(100ms).empty());
  node.ended(1, {.signal = SIGKILL});
  CHECK(node.wait(100ms).empty());
}

TEST_CASE("a coordinator that comes back meanwhile hears of the node when the wait is over", "[supervisor][pending]") {
  Node node = waiting_for_one();
  node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
  SECTION("within it") {
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1"});  // it is still there
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"acknowledge 1"});
    CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"join last 1"});
    CHECK(node.wanted == 4);
  }
  SECTION("after it") {
    CHECK(node.wait(100ms).empty());
    CHECK(node.on(LinkUp{}) == Words{"join last 1"});
    CHECK(node.wanted == 3);
  }
}

namespace {

/// A node with one worker of two, whose last steps took 300 ms. Its worker, which started in 10 ms, has died.
Node alone(Duration step = 300ms) {
  Node node{1};
  node.on(LinkUp{});
  node.hear(world(1, 1, 2));
  node.now += 10ms;
  node.on(WorkerStarted{LocalRank{0}, 100});
  node.tell(10, Hello{.pid = 100, .rank = 1, .world = 2, .is_job = true, .stays = true, .says_ready = true});
  node.tell(10, StoreRequest{.id = 1, .op = StoreOp::all_gather, .generation = generation(1), .keys = {"peers"}, .rank = 1, .count = 2});
  for (const std::uint64_t number : {1u, 2u}) {
    node.now += step;
    node.tell(10, StepDecided{generation(1), number});
  }
  node.ended(0, {.signal = SIGKILL});
  return node;
}

}  // namespace

TEST_CASE("a node whose workers have all died brings successors along as well, where starts are quick", "[supervisor][pending]") {
  Node node = alone();
  CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "signal 0 9", "release 0", "spawn 0 beside"});
  node.on(WorkerStarted{LocalRank{0}, 200});
  node.tell(20, Hello{.pid = 200, .rank = 1, .world = 2, .is_job = true, .stays = true, .says_ready = true});
  const auto joined_as = [&] { return std::get<Join>(std::get<Send>(node.actions.back()).message).preparedness; };
  SECTION("it joins with them when they are ready") {
    CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"join last 1"});
    CHECK(node.wanted == 1);
    CHECK(joined_as() == Preparedness::fresh);
    CHECK(node.hear(world(2, 1, 2)) == Words{"welcome 20"});
  }
  SECTION("they are not as quick this time: it asks for their places all the same") {
    CHECK(node.wait(300ms) == Words{"join last 1"});
    CHECK(node.wanted == 1);
    CHECK(joined_as() == Preparedness::none);
    SECTION("the others go on without it") {
      World beside = world(2, 1, 2);
      CHECK(node.hear(Prepare{beside}).empty());
      CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"more"});
      CHECK(node.hear(world(3, 1, 2)) == Words{"welcome 20"});
    }
    SECTION("a successor that is ready before they do is told") {
      CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"more"});
      CHECK(node.hear(Prepare{world(2, 1, 2)}) == Words{"more"});
    }
    SECTION("or wait for it") { CHECK(node.hear(world(2, 1, 2)) == Words{"welcome 20"}); }
  }
  SECTION("a successor that ends meanwhile") {
    CHECK(node.ended(0, {.exit_code = 1}) == Words{"signal 0 9", "release 0", "join last 1"});
    CHECK(joined_as() == Preparedness::none);
    CHECK(node.hear(world(2, 1, 2)) == Words{"spawn 0"});
  }
}

TEST_CASE("a node that said that its successors are ready takes it back when all have died", "[supervisor][pending]") {
  Node node{2};
  node.on(LinkUp{});
  node.hear(world(1, 2, 2));
  node.now += 10ms;
  const auto hello = [](std::uint32_t worker, std::uint32_t pid) {
    return Hello{.pid = pid, .rank = 2 + worker, .world = 4, .is_job = true, .stays = true, .says_ready = true};
  };
  for (std::uint32_t i = 0; i < 2; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, hello(i, 100 + i));
    node.tell(10 + i,
              StoreRequest{.id = 1, .op = StoreOp::all_gather, .generation = generation(1), .keys = {"peers"}, .rank = 2 + i, .count = 4});
  }
  for (const std::uint64_t step : {1u, 2u}) {
    node.now += 300ms;
    for (std::uint32_t i = 0; i < 2; ++i) node.tell(10 + i, StepDecided{generation(1), step});
  }
  for (std::uint32_t i = 0; i < 2; ++i) node.ended(i, {.signal = SIGKILL});
  node.hear(Revoke{generation(1), revoked});
  for (std::uint32_t i = 0; i < 2; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 200 + i});
    node.tell(20 + i, hello(i, 200 + i));
  }
  node.tell(20, ReadyForPlace{generation(1)});
  CHECK(node.wait(300ms) == Words{"join last 1"});
  CHECK(node.wanted == 1);  // the other one is pending
  CHECK(node.ended(0, {.exit_code = 3}) == Words{"signal 0 9", "release 0"});
  CHECK(node.ended(1, {.exit_code = 3}) == Words{"signal 1 9", "release 1", "not prepared 3"});
}

TEST_CASE("a node says whether workers of it stay that may have state", "[supervisor][pending]") {
  Node node = waiting_for_one();
  CHECK(node.wait(100ms) == Words{"join last 1"});  // the successor of one of four is pending
  const auto joined_as = [&] { return std::get<Join>(std::get<Send>(node.actions.back()).message).preparedness; };
  CHECK(joined_as() == Preparedness::ready);
  node.hear(world(2, 3));
  node.ended(1, {.exit_code = 1});  // in no world, so its successor is started with the next one
  CHECK(end(node, 2, {10, 12, 13}) == Words{"join last 2"});
  CHECK(node.wanted == 4);
  CHECK(joined_as() == Preparedness::some_stay);
}

TEST_CASE("where starts take longer than that is worth, such a node joins at once, and starts its workers when it is told to",
          "[supervisor][pending]") {
  Node node = alone(5ms);
  CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "signal 0 9", "release 0", "join last 1"});
  CHECK(node.hear(Prepare{world(2, 1, 2)}) == Words{"spawn 0 beside"});
}

}  // namespace elrun::test::supervisor_pending
