// Pending workers: started beside the next generation, which does not wait for them.

#include "tests/unit/supervisor_four.hpp"

namespace elrun::test::supervisor_pending {
namespace {

/// Worker 1 has died in generation 1, and its successor, with pid 201, is pending beside generation 2.
Node without_one() {
  Node node = running();
  node.ended(1, {.signal = SIGKILL});
  CHECK(end(node, 1, {10, 12, 13}) == Words{"release 1", "join last 1"});
  CHECK(node.wanted == 3);
  CHECK(node.hear(world(2, 3)) == Words{"welcome 10", "welcome 12", "welcome 13", "spawn 1 beside"});
  node.on(WorkerStarted{LocalRank{1}, 201});
  return node;
}

Failure over_in(const Action& action) { return std::get<GenerationOver>(std::get<Answer>(action).message).why; }

}  // namespace

TEST_CASE("the others go on in a smaller world, and keep their devices", "[supervisor][pending]") {
  Node node = running();
  node.ended(1, {.signal = SIGKILL});
  end(node, 1, {10, 12, 13});
  node.hear(world(2, 3));
  CHECK(node.said.find("generation 2: 1 node, 3 workers, 3 go on here in the same process") == 0);
  CHECK(node.said.find("1 worker is being started here, and joins when it is ready") != std::string::npos);
  REQUIRE(node.actions.size() >= 3);
  const Place third = place_in(node.actions[node.actions.size() - 2]);
  CHECK(third.membership == Membership{generation(2), Rank{2}, WorldSize{3}});
  CHECK(third.local_rank == LocalRank{3});  // what it computes on does not move
  CHECK(third.local_world == 4);
}

TEST_CASE("an earlier coordinator, which would never take it in, begins the next world with all workers", "[supervisor][pending]") {
  Node node{2};
  node.on(LinkUp{});
  World first = world(1, 2), next = world(2, 2);
  first.takes_more = next.takes_more = false;
  node.hear(first);
  for (std::uint32_t i = 0; i < 2; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, Hello{.pid = 100 + i, .rank = i, .world = 2, .is_job = true, .stays = true, .says_ready = true});
  }
  node.ended(1, {.signal = SIGKILL});
  end(node, 1, {10});
  CHECK(node.wanted == 2);
  CHECK(node.hear(next) == Words{"welcome 10", "spawn 1"});
}

TEST_CASE("a pending worker has the environment of the place that was lost", "[supervisor][pending]") {
  Node node = running();
  node.ended(2, {.signal = SIGKILL});
  end(node, 1, {10, 11, 13});
  World next = world(2, 3);
  next.cause = "rank 2 died";
  node.hear(next);
  const auto& spawn = std::get<Spawn>(node.actions.back());
  CHECK(spawn.worker == LocalRank{2});
  CHECK(spawn.place == 2);
  CHECK(spawn.is_pending);
  CHECK(spawn.world.generation == generation(1));
  CHECK(spawn.world.seat.world_size == 4);
  CHECK(spawn.world.cause == "rank 2 died");
  CHECK(spawn.world.restarts.generations == 1);
}

TEST_CASE("a pending worker is told that its generation is over, and joins when its program is ready", "[supervisor][pending]") {
  Node node = without_one();
  CHECK(node.tell(20, successor) == Words{"revoke 20", "welcome 20", "revoke 20"});
  CHECK(place_in(node.actions[1]).membership == Membership{generation(1), Rank{1}, WorldSize{4}});
  CHECK(place_in(node.actions[1]).local_rank == LocalRank{1});
  CHECK(over_in(node.actions[0]).code == Code::generation_over);  // before it has a place in it
  CHECK(over_in(node.actions[0]).what ==
        "this process was started beside it, for the next one: it calls Session::next_generation before it joins");
  CHECK(over_in(node.actions[2]).code == Code::generation_over);
  CHECK(node.tell(20, acknowledgement(1)).empty());
  node.tell(10, StepDecided{generation(2), 7});
  node.now += 1h;  // a large model: nobody waits for it, and nothing is due
  CHECK(node.on(Tick{}).empty());
  CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"more"});
  CHECK(node.tell(20, ReadyForPlace{generation(1)}).empty());
  const Failure grows{Code::generation_over, Remedy::rejoin, "the world grows by workers of n"};
  CHECK(node.hear(Revoke{generation(2), grows}) == Words{"revoke 10", "revoke 12", "revoke 13"});
  node.tell(10, acknowledgement(2));
  node.tell(12, acknowledgement(2));
  CHECK(node.tell(13, acknowledgement(2)) == Words{"join last 2"});
  CHECK(node.wanted == 4);
  CHECK(node.hear(world(3, 4)) == Words{"welcome 10", "welcome 20", "welcome 12", "welcome 13"});
  CHECK(node.said == "generation 3: 1 node, 4 workers, 3 go on here in the same process, 1 that was started meanwhile joins\n");
  CHECK(place_in(node.actions[3]).membership == Membership{generation(3), Rank{1}, WorldSize{4}});
  for (const ConnectionId from : {10u, 20u, 12u, 13u}) node.tell(from, Returned{generation(3)});
  CHECK_FALSE(node.wake_at());
  // From here on it is a worker as any other.
  CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"failed 1 137 job"});
}

TEST_CASE("a pending worker that becomes ready between generations gets a place in the next one", "[supervisor][pending]") {
  Node node = without_one();
  CHECK(node.tell(20, successor) == Words{"revoke 20", "welcome 20", "revoke 20"});
  node.hear(Revoke{generation(2), revoked});
  node.tell(10, acknowledgement(2));
  node.tell(12, acknowledgement(2));
  SECTION("before it has asked") {
    CHECK(node.tell(20, ReadyForPlace{generation(1)}).empty());
    CHECK(node.tell(13, acknowledgement(2)) == Words{"join last 2"});
    CHECK(node.wanted == 4);
    CHECK(node.hear(world(3, 4)) == Words{"welcome 10", "welcome 20", "welcome 12", "welcome 13"});
  }
  SECTION("when it has asked for three places already: in the one after") {
    CHECK(node.tell(13, acknowledgement(2)) == Words{"join last 2"});
    CHECK(node.wanted == 3);
    CHECK(node.tell(20, ReadyForPlace{generation(1)}).empty());
    CHECK(node.hear(world(3, 3)) == Words{"welcome 10", "welcome 12", "welcome 13", "more"});
  }
}

TEST_CASE("nobody waits for a pending worker that dies before it hears of its place", "[supervisor][pending]") {
  Node node = without_one();
  node.tell(20, successor);
  node.tell(20, ReadyForPlace{generation(1)});
  end(node, 2, {10, 12, 13});
  CHECK(node.wanted == 4);
  CHECK(node.on(WorkerHungUp{20}) == Words{"caller gone", "signal 1 9"});
  SECTION("its process is gone when the world comes: another one is started with it") {
    node.ended(1, {.signal = SIGKILL});
    CHECK(node.hear(world(3, 4)) == Words{"welcome 10", "spawn 1", "welcome 12", "welcome 13"});
  }
  SECTION("or it ends in that world, as any other") {
    CHECK(node.hear(world(3, 4)) == Words{"welcome 10", "welcome 12", "welcome 13"});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"failed 1 137 job"});
  }
}

TEST_CASE("a new coordinator is told again that more workers are ready", "[supervisor][pending]") {
  Node node = without_one();
  node.tell(20, successor);
  node.on(LinkDown{});
  CHECK(node.tell(20, ReadyForPlace{generation(1)}).empty());
  CHECK(node.on(LinkUp{}) == Words{"join resuming last 2 seat 0"});
  CHECK(node.wanted == 3);  // what it has in the generation that it resumes
  CHECK(node.hear(Resumed{generation(2)}) == Words{"more"});
}

TEST_CASE("a worker with an earlier libelrun has a place as soon as it has acknowledged", "[supervisor][pending]") {
  Node node = without_one();
  node.tell(10, StepDecided{generation(2), 7});
  node.tell(20, Hello{.pid = 201, .rank = 1, .world = 4, .is_job = true, .stays = true});
  CHECK(node.tell(20, acknowledgement(1)) == Words{"more"});
  end(node, 2, {10, 12, 13});
  CHECK(node.hear(world(3, 4)) == Words{"welcome 10", "welcome 20", "welcome 12", "welcome 13"});
  for (const ConnectionId from : {10u, 12u, 13u}) node.tell(from, Returned{generation(3)});
  CHECK_FALSE(node.wake_at());  // its program may still need a minute to its first step
}

TEST_CASE("a pending worker that dies counts as a failure, and its successor starts with the next generation", "[supervisor][pending]") {
  Node node = without_one();
  if (GENERATE(true, false)) node.tell(20, successor);
  CHECK(node.ended(1, {.exit_code = 3}) == Words{"signal 1 9", "release 1", "failed 1 3 job"});  // as its predecessor was
  CHECK(node.said.find("before it was in a world") != std::string::npos);
  CHECK(end(node, 2, {10, 12, 13}) == Words{"join last 2"});
  CHECK(node.wanted == 4);
  CHECK(node.hear(world(3, 4)) == Words{"welcome 10", "spawn 1", "welcome 12", "welcome 13"});
}

TEST_CASE("so does one that ends well, for nobody else would start another one", "[supervisor][pending]") {
  Node node = without_one();
  SECTION("before it has said anything") {}
  SECTION("or when it had") { node.tell(20, successor); }
  SECTION("or when it was ready") {
    node.tell(20, successor);
    node.tell(20, ReadyForPlace{generation(1)});
  }
  const Words words = node.ended(1);
  CHECK(std::count(words.begin(), words.end(), "failed 1 1 job") == 1);
  CHECK(node.said.find("ended by exit code 0 before it was in a world: the program left in the middle of the job") != std::string::npos);
  CHECK(end(node, 2, {10, 12, 13}) == Words{"join last 2"});
  CHECK(node.wanted == 4);
  CHECK(node.hear(world(3, 4)) == Words{"welcome 10", "spawn 1", "welcome 12", "welcome 13"});
}

TEST_CASE("the end of the others' generation does not touch a pending worker", "[supervisor][pending]") {
  Node node = without_one();
  node.ended(3, {.signal = SIGKILL});
  CHECK(node.hear(Revoke{generation(2), revoked}) == Words{"revoke 10", "revoke 12", "revoke 13", "signal 3 9"});
  node.tell(10, acknowledgement(2));
  CHECK(node.tell(12, acknowledgement(2)) == Words{"release 3", "join last 2"});
  CHECK(node.wanted == 2);
  CHECK(node.tell(20, successor) == Words{"revoke 20", "welcome 20", "revoke 20"});  // whatever this node does meanwhile
  CHECK(node.hear(world(3, 2)) == Words{"welcome 10", "welcome 12", "spawn 3 beside"});
}

TEST_CASE("where nobody goes on, the next world waits for all that are started with it", "[supervisor][pending]") {
  Node node = without_one();
  for (const std::uint32_t i : {0u, 2u, 3u}) node.on(WorkerHungUp{10 + i}), node.ended(i, {.signal = SIGKILL});
  CHECK(node.hear(Revoke{generation(2), revoked}) ==
        Words{"signal 0 9", "signal 2 9", "signal 3 9", "release 0", "release 2", "release 3", "join last 2"});
  CHECK(node.wanted == 3);
  SECTION("a pending worker joins when it is ready") {
    CHECK(node.hear(world(3, 3)) == Words{"spawn 0", "spawn 2", "spawn 3"});
    node.tell(20, successor);
    CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"more"});
  }
  SECTION("one that is ready by then has a place, and another one is pending") {
    node.tell(20, successor);
    node.tell(20, ReadyForPlace{generation(1)});
    CHECK(node.hear(world(3, 3)) == Words{"spawn 0", "welcome 20", "spawn 2", "spawn 3 beside"});
  }
}

TEST_CASE("nobody waits for a pending worker when there is no next generation", "[supervisor][pending]") {
  Node node = without_one();
  node.tell(20, successor);
  SECTION("the job is over") {
    CHECK(node.tell(10, JobOver{generation(2)}) == Words{"job finished", "signal 1 9", "over 10"});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1"});  // no failure
    for (const std::uint32_t i : {0u, 2u}) CHECK(node.ended(i).empty());
    CHECK(node.ended(3) == Words{"done"});
    CHECK(node.hear(Verdict{}).back() == "finish 0");
  }
  SECTION("the others ended before it did") {
    for (const std::uint32_t i : {0u, 2u}) CHECK(node.ended(i).empty());
    CHECK(node.ended(3) == Words{"done"});
    const Words words = node.hear(Verdict{});
    CHECK(std::count(words.begin(), words.end(), "signal 1 9") == 1);
    CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 0");
  }
  SECTION("the job failed") {
    const Words words = node.hear(Verdict{.exit_code = 3});
    CHECK(std::count(words.begin(), words.end(), "signal 1 9") == 1);
  }
  SECTION("the node leaves: those that have state save it, and nobody asks the other") {
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"signal 1 9", "prepare 10", "prepare 12", "prepare 13"});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1"});
    node.tell(10, PrepareToLeave{generation(2)});
    node.tell(12, PrepareToLeave{generation(2)});
    CHECK(node.tell(13, PrepareToLeave{generation(2)}) == Words{"leave", "signal 0 15", "signal 2 15", "signal 3 15"});
  }
}

TEST_CASE("only the pending worker is killed that hangs at its start", "[supervisor][pending]") {
  Node node{2, 10s, HangSign::progress};
  node.on(LinkUp{});
  node.hear(world(1, 2));
  for (std::uint32_t i = 0; i < 2; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, Hello{.rank = i, .world = 2, .is_job = true, .stays = true, .says_ready = true});
  }
  node.ended(1, {.signal = SIGKILL});
  end(node, 1, {10});
  node.hear(world(2, 1));
  node.on(WorkerStarted{LocalRank{1}, 201});
  node.tell(10, Returned{generation(2)});
  std::uint64_t step = 0;
  const auto others_train_for = [&](Duration time) {  // second by second: an agent that itself comes late blames nobody
    Words words;
    for (; time > Duration{0}; time -= 1s) {
      const Words now = node.wait(1s);
      words.insert(words.end(), now.begin(), now.end());
      node.tell(10, StepDecided{generation(2), ++step});
    }
    return words;
  };
  CHECK(others_train_for(9s).empty());
  const Message hello = Hello{.pid = 201, .rank = 1, .world = 2, .is_job = true, .stays = true, .says_ready = true};
  const bool opens_session = GENERATE(true, false);
  if (opens_session) {  // which is a sign of progress
    node.tell(20, hello);
    CHECK(others_train_for(9s).empty());
  }
  SECTION("its stacks are taken, then it is killed, and the next world waits for another one") {
    CHECK(node.wait(1s) == Words{"stacks 1"});
    CHECK(node.said.find("no sign of progress for 10.0 s of the successor of rank 1 of generation 1 (node n, pid 201), a pending worker") ==
          0);
    CHECK(others_train_for(4s).empty());
    CHECK(others_train_for(1s) == Words{"signal 1 9"});
    CHECK(others_train_for(5s).empty());                                            // once
    if (opens_session) CHECK(node.tell(20, ReadyForPlace{generation(1)}).empty());  // it said so before it died: too late
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1", "failed 1 174 job"});
    const auto& told = std::get<WorkerFailed>(std::get<Send>(node.actions.back()).message);
    CHECK(told.what.find("a hang (no sign of progress for 10.0 s)") == 0);
    CHECK(told.death.evidence.find("it hung") == 0);
    CHECK(end(node, 2, {10}) == Words{"join last 2"});
    CHECK(node.wanted == 2);
  }
  SECTION("nor does one hang that has died") {
    CHECK(node.ended(1, {.exit_code = 3}) == Words{"signal 1 9", "release 1", "failed 1 3 job"});
    for (int i = 0; i < 3; ++i) CHECK(others_train_for(9s).empty());
  }
  if (!opens_session) return;
  SECTION("not one that is ready by then, however long it waits for its place") {
    CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"more"});
    for (int i = 0; i < 10; ++i) CHECK(others_train_for(9s).empty());
  }
  SECTION("nor one that is ready while its stacks are taken") {
    CHECK(others_train_for(1s) == Words{"stacks 1"});
    CHECK(node.tell(20, ReadyForPlace{generation(1)}) == Words{"more"});
    for (int i = 0; i < 10; ++i) CHECK(others_train_for(9s).empty());
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1", "failed 1 137 job"});
  }
  SECTION("nor one that is ended because the job is over, however long it takes to die") {
    if (GENERATE(true, false)) CHECK(others_train_for(1s) == Words{"stacks 1"});
    CHECK(node.tell(10, JobOver{generation(2)}) == Words{"job finished", "signal 1 9", "over 10"});
    for (int i = 0; i < 10; ++i) CHECK(node.wait(1s).empty());
  }
  SECTION("what it writes is a sign") {
    for (int i = 0; i < 10; ++i) {
      node.on(WorkerWrote{LocalRank{1}});
      CHECK(others_train_for(9s).empty());
    }
    CHECK(others_train_for(1s) == Words{"stacks 1"});
  }
  SECTION("a hang of the world leaves it alone") {
    node.on(WorkerWrote{LocalRank{1}});
    node.tell(20, ReadyForPlace{generation(1)});
    CHECK(others_train_for(9s).empty());
    CHECK(node.wait(10s) == Words{"stacks 0"});
  }
}

TEST_CASE("which worker speaks follows from what its environment said, not from its place now", "[supervisor][pending]") {
  Node node = without_one();
  SECTION("a wrapper's program has another process number") {
    CHECK(node.tell(20, Hello{.pid = 999, .rank = 1, .world = 4, .is_job = true, .stays = true}) ==
          Words{"revoke 20", "welcome 20", "revoke 20"});
  }
  SECTION("one that says another rank than it was started with is none") {
    CHECK(node.tell(20, Hello{.pid = 201, .rank = 1, .world = 3, .is_job = true, .stays = true}) == Words{"refuse 20"});
  }
  SECTION("one that cannot stay cannot come either") {
    CHECK(node.tell(20, Hello{.pid = 201, .rank = 1, .world = 4, .is_job = true}) == Words{"refuse 20"});
  }
}

}  // namespace elrun::test::supervisor_pending
