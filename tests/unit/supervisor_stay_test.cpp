// Workers that stay: their process goes on from one generation to the next.

#include "tests/unit/supervisor_node.hpp"

namespace elrun::test::supervisor_stay {
namespace {

constexpr Duration returning = Timeouts{}.returning, revocation = Timeouts{}.revocation;

Message acknowledgement(std::uint64_t number, Duration returns_within = Duration{0}) {
  return GenerationOver{generation(number), {.code = Code::generation_over}, returns_within};
}

/// Two workers of generation 1 that can stay, on connections 10 and 11. `trains`: they have joined the world, and decided a step.
Node running(bool trains = true, Duration hang_timeout = Duration{0}) {
  Node node{2, hang_timeout, HangSign::progress};
  node.on(LinkUp{});
  node.hear(world(1, 2));
  for (std::uint32_t i = 0; i < 2; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    CHECK(node.tell(10 + i, Hello{.rank = i, .world = 2, .is_job = true, .stays = true}) == Words{fmt::format("welcome {}", 10 + i)});
  }
  if (trains) CHECK(node.tell(10, StepDecided{generation(1), 1}) == Words{"progress 1"});
  return node;
}

}  // namespace

TEST_CASE("when the world changes, workers that stay are told, acknowledge it, and get a place in the next one", "[supervisor][stay]") {
  Node node = running();
  CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "revoke 11"});
  CHECK(node.tell(10, acknowledgement(1)).empty());  // the node acknowledges once nothing of it can act any more
  CHECK(node.tell(11, acknowledgement(1)) == Words{"join last 1"});
  World next = world(2, 2);
  next.seat = {.group_rank = 1, .base_rank = 4, .nodes = 2, .world_size = 6};
  CHECK(node.hear(next) == Words{"welcome 10", "welcome 11"});
  const auto& place = std::get<Welcome>(std::get<Answer>(node.actions.back()).message).place;
  CHECK(place.membership == Membership{generation(2), Rank{5}, WorldSize{6}});
  CHECK(node.tell(10, Returned{generation(2)}).empty());
  CHECK(node.tell(11, Returned{generation(2)}).empty());
  CHECK_FALSE(node.wake_at());
  CHECK(node.tell(10, StepDecided{generation(2), 9}) == Words{"progress 9"});
}

TEST_CASE("a worker that is started again hears how far the job was, and of its newest checkpoint", "[supervisor][stay]") {
  Node node = running();
  CHECK(node.tell(10, CheckpointSaved{"step 4"}).empty());
  CHECK(node.tell(10, StepDecided{generation(1), 9}) == Words{"progress 9"});
  CHECK(node.tell(11, CheckpointSaved{"step 8"}).empty());
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  node.tell(11, acknowledgement(1));
  CHECK(node.hear(world(2, 2)) == Words{"welcome 10", "welcome 11"});
  CHECK(node.tell(10, StepDecided{generation(2), 5}) == Words{"progress 5"});  // steps are done again
  node.hear(Revoke{generation(2), revoked});
  node.tell(10, acknowledgement(2));
  node.tell(11, acknowledgement(2));
  CHECK(node.hear(world(3, 2)) == Words{"welcome 10", "welcome 11"});
  const auto& remembered = std::get<Welcome>(std::get<Answer>(node.actions.back()).message).remembered;
  CHECK(remembered.decided == 9);
  CHECK(remembered.checkpoint == "step 8");
}

TEST_CASE("workers hear how their like failed after the checkpoint that they went on from, and the end says from where",
          "[supervisor][stay]") {
  Node node = running();
  const Restoration from{"/ck/s40", 40, 2, "the newest checkpoint", {"checkpoint s60 cannot be used"}};
  CHECK(node.tell(10, WentOnFrom{generation(1), from}).empty());
  CHECK(node.tell(99, WentOnFrom{generation(1), {"/other", 1, 0, "", {}}}).empty());  // nobody's connection
  CHECK(node.tell(10, WentOnFrom{generation(7), {"/other", 1, 0, "", {}}}).empty());
  node.ended(0, {.exit_code = 3});
  node.hear(Revoke{generation(1), revoked});
  node.on(WorkerHungUp{10});
  node.tell(11, acknowledgement(1));
  CHECK(node.hear(world(2, 1)).front() == "welcome 11");
  std::vector<FailureAfter> told;
  for (const Action& action : node.actions)
    if (const auto* answer = std::get_if<Answer>(&action))
      if (const auto* welcome = std::get_if<Welcome>(&answer->message)) told = welcome->remembered.failures;
  CHECK(told == std::vector<FailureAfter>{{"/ck/s40", 1, 40, "exit code 3"}});
  node.hear(Verdict{.exit_code = 3, .report = "rank 0 ended by exit code 3"});
  node.tell(11, acknowledgement(2));
  for (const std::uint32_t worker : {0u, 1u}) node.ended(worker, {.signal = SIGTERM});
  const auto* finish = std::get_if<Finish>(&node.actions.back());
  REQUIRE(finish != nullptr);
  CHECK(finish->went_on_from == "step 40, from /ck/s40 (the newest checkpoint); 2 steps done again\ncheckpoint s60 cannot be used");
}

TEST_CASE("only the dead are started again, and the others do not wait for them", "[supervisor][stay]") {
  Node node = running();
  CHECK(node.ended(0, {.signal = SIGKILL}) == Words{"failed 0 137 job"});
  CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "signal 0 9", "revoke 11"});
  node.on(WorkerHungUp{10});
  CHECK(node.tell(11, acknowledgement(1)) == Words{"release 0", "join last 1"});
  CHECK(node.hear(world(2, 1)) == Words{"welcome 11", "spawn 0 beside"});
  CHECK(node.said.find("1 goes on here in the same process") != node.said.npos);
}

TEST_CASE("who does not acknowledge in time is killed and started again", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  REQUIRE(node.wake_at() == node.now + revocation);
  CHECK(node.wait(revocation) == Words{"signal 1 9"});
  CHECK(node.said.find("did not acknowledge") != node.said.npos);
  CHECK(node.tell(11, acknowledgement(1)).empty());  // too late
  CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1", "join last 1"});
  CHECK(node.hear(world(2, 1)) == Words{"welcome 10", "spawn 1 beside"});
}

TEST_CASE("who does not come back from its program in time is killed: longer where its slots are longer", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  node.tell(11, acknowledgement(1, 2 * returning));
  node.hear(world(2, 2));
  CHECK(node.wait(returning) == Words{"signal 0 9"});
  CHECK(node.said.find("rank 0") != node.said.npos);
  CHECK(node.wait(10s).empty());  // by then SIGKILL has ended it, or it is stuck
  CHECK(node.wait(returning - 10s - 1ns).empty());
  CHECK(node.wait(1ns) == Words{"signal 1 9"});
  CHECK(node.ended(0, {.signal = SIGKILL}) == Words{"failed 0 137 job"});  // as any worker that dies
}

TEST_CASE("a worker that has ended is not late to come back, however long the coordinator is away", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  node.tell(11, acknowledgement(1));
  node.hear(world(2, 2));
  node.tell(11, Returned{generation(2)});
  node.on(LinkDown{});
  node.ended(0, {.signal = SIGSEGV});
  CHECK(node.wait(returning).empty());
  CHECK(node.said.find("did not come back") == node.said.npos);
}

TEST_CASE("a worker whose program has not come to its Job yet is not late in the next generation, for it still starts",
          "[supervisor][stay]") {
  const bool watched = GENERATE(false, true);
  Node node = running(false, watched ? Duration{100 * returning} : Duration{0});
  StoreRequest asks_for_peers;
  asks_for_peers.op = StoreOp::all_gather;
  asks_for_peers.id = 1, asks_for_peers.generation = generation(1);
  asks_for_peers.keys = {"peers"};
  asks_for_peers.count = 2, asks_for_peers.wait = 600s;
  node.tell(10, asks_for_peers);  // the other one reads its data
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  node.tell(11, acknowledgement(1));
  CHECK(node.hear(world(2, 2)) == Words{"welcome 10", "welcome 11"});
  CHECK(node.tell(10, Returned{generation(2)}).empty());
  CHECK(node.wait(returning).empty());
  const WorkersStarting* told = nullptr;
  for (const Action& a : node.actions)
    if (const auto* send = std::get_if<Send>(&a))
      if (const auto* starting = std::get_if<WorkersStarting>(&send->message)) told = starting;
  REQUIRE(told != nullptr);  // the coordinator says for whom the others wait
  CHECK(told->count == 1);
  CHECK(told->rank == 1);
  CHECK(node.wait(90 * returning).empty());
  if (watched) CHECK(node.wait(9 * returning) == Words{"stacks 0", "stacks 1"});
}

TEST_CASE("a lost peer that a worker tells of is no acknowledgement", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, GenerationOver{generation(1), revoked});
  CHECK(node.tell(11, acknowledgement(1)).empty());
  CHECK(node.tell(10, acknowledgement(2)).empty());  // nor is one of another generation
  CHECK(node.tell(10, acknowledgement(1)) == Words{"join last 1"});
}

TEST_CASE("a worker that was to stay and fails when its generation is over is told of, and is a failure of its node",
          "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), {Code::generation_over, Remedy::rejoin, "the world grows by m"}, EndCause::growth});
  const auto restarts = [&] {
    node.tell(10, acknowledgement(1));
    node.hear(world(2, 1));
    return std::get<Spawn>(node.actions.back()).node_restarts;
  };
  SECTION("its connection ends first") {
    CHECK(node.on(WorkerHungUp{11}) == Words{"caller gone", "signal 1 9"});
    WorkerEnded e{LocalRank{1}, {.signal = SIGSEGV}};
    e.death.evidence = "a reason";
    CHECK(node.on(e) == Words{"failed 1 139 job", "signal 1 9"});
    CHECK(node.said == "rank 1 (node n, pid 101) ended by signal 11 (SIGSEGV) when generation 1 was over: a reason\n");
    CHECK(restarts() == 1);
  }
  SECTION("it is killed") {
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"failed 1 137 job", "signal 1 9"});
    CHECK(node.said == "rank 1 (node n, pid 101) ended by signal 9 (SIGKILL) when generation 1 was over\n");
    CHECK(restarts() == 1);
  }
  SECTION("not when elrun killed it") {
    node.tell(10, acknowledgement(1));
    CHECK(node.wait(revocation) == Words{"signal 1 9"});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1", "join last 1"});
    CHECK(node.said.empty());
    CHECK(restarts() == 0);
  }
}

TEST_CASE("between generations a worker that dies is collected, and the next world has a fresh one", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  node.tell(11, acknowledgement(1));
  // Its Join said that the workers are ready for their places.
  SECTION("by itself") { CHECK(node.ended(1, {.signal = SIGSEGV}) == Words{"signal 1 9", "release 1", "not prepared 139"}); }
  SECTION("after its connection broke, for nobody could tell it its place") {
    CHECK(node.on(WorkerHungUp{11}) == Words{"caller gone", "signal 1 9"});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 1", "not prepared 137"});
  }
  CHECK(node.hear(world(2, 2)) == Words{"welcome 10", "spawn 1"});
}

TEST_CASE("a connection that breaks between generations costs its worker the place, also when the world comes first",
          "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  node.tell(11, acknowledgement(1));
  node.on(WorkerHungUp{11});
  CHECK(node.hear(world(2, 2)) == Words{"welcome 10"});                    // its process has not ended yet
  CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"failed 1 137 job"});  // a generation more, and all is well
}

TEST_CASE("workers that stay end with the job", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  SECTION("while others still acknowledge") {
    CHECK(node.hear(Verdict{.exit_code = 3}) == Words{"signal 0 9", "signal 1 9"});
    node.ended(0, {.signal = SIGKILL});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 0", "release 1", "finish 3"});
  }
  SECTION("while they wait for a world") {
    node.tell(11, acknowledgement(1));
    CHECK(node.hear(Verdict{.exit_code = 3}) == Words{"revoke 10", "signal 0 9", "revoke 11", "signal 1 9"});
    node.ended(0, {.signal = SIGKILL});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9", "release 0", "release 1", "finish 3"});
  }
  SECTION("by a signal to this node, which they get too") {
    node.tell(11, acknowledgement(1));
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leave", "signal 0 15", "signal 1 15"});
    node.ended(0, {.signal = SIGTERM});
    CHECK(node.ended(1, {.signal = SIGTERM}) == Words{"signal 1 9", "release 0", "release 1", "finish 143"});
  }
}

TEST_CASE("a worker that reports the job's end after its generation has ended is believed, and does its last work", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  SECTION("while others acknowledge") {
    CHECK(node.tell(10, JobOver{generation(1)}) == Words{"job finished", "over 10"});
    CHECK(node.tell(11, acknowledgement(1)).empty());
    CHECK(node.tell(11, JobOver{generation(1)}) == Words{"over 11"});
    CHECK(node.wait(3599s).empty());
    CHECK(node.ended(0) == Words{"signal 0 9"});
    CHECK(node.ended(1) == Words{"signal 1 9", "release 0", "release 1", "join last 1", "job finished"});
  }
  SECTION("while they wait for a world: there is none for them any more") {
    node.tell(11, acknowledgement(1));
    CHECK(node.tell(10, JobOver{generation(1)}) == Words{"job finished", "over 10"});
    CHECK(node.hear(world(2, 2)) == Words{"job finished"});  // begun before the coordinator heard it: of that generation, too
    SECTION("one that does not say it waits for nothing, and is killed") {
      CHECK(node.wait(revocation) == Words{"signal 1 9"});
      CHECK(node.said.find("rank 1") != std::string::npos);
      CHECK(node.said.find("did not say within 2.0 s that it knows that the job is over (generation 1): killed") != std::string::npos);
      CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9"});
      CHECK(node.said.find("after the job was over") == std::string::npos);
      CHECK(node.wait(3590s).empty());
      CHECK(node.ended(0) == Words{"signal 0 9", "release 0", "release 1", "join last 1", "job finished"});
    }
    SECTION("nor is the node done while that one may still say it") {
      CHECK(node.ended(0, {.exit_code = 1}) == Words{"signal 0 9"});
      CHECK(node.said.find("ended by exit code 1 after the job was over; it does not count") != std::string::npos);
      CHECK(node.tell(11, JobOver{generation(1)}) == Words{"over 11"});
      CHECK(node.wait(3599s).empty());
      CHECK(node.wait(1s) == Words{"signal 1 9"});  // the hour is over
    }
  }
  SECTION("the verdict comes before it") {
    if (GENERATE(true, false)) node.tell(11, acknowledgement(1));
    CHECK(node.hear(Verdict{}).empty());
    CHECK(node.tell(10, JobOver{generation(1)}) == Words{"over 10"});
    CHECK(node.wait(revocation) == Words{"signal 1 9"});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9"});
    CHECK(node.wait(3590s).empty());
    CHECK(node.ended(0) == Words{"signal 0 9", "release 0", "release 1", "finish 0"});
  }
  SECTION("a signal to this node ends its last work") {
    node.tell(10, JobOver{generation(1)});
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leave", "signal 1 9", "signal 0 15", "signal 1 15"});
    SECTION("it is told when that cut it short") {
      node.ended(1, {.signal = SIGKILL});
      CHECK(node.ended(0, {.signal = SIGTERM}).back() == "finish 143");
    }
    SECTION("a worker that waited for a world had none") {
      node.ended(1, {.signal = SIGKILL});
      CHECK(node.ended(0).back() == "finish 0");
    }
    SECTION("and it is killed after the grace") { CHECK(node.wait(30s) == Words{"signal 0 9", "signal 1 9"}); }
  }
}

TEST_CASE("a worker that has said that the job is over does its last work, also when its generation is ended after that",
          "[supervisor][stay]") {
  Node node = running();
  CHECK(node.tell(10, JobOver{generation(1)}) == Words{"job finished", "over 10"});
  CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 11"});
  SECTION("and so does one that says it then") {
    CHECK(node.tell(11, acknowledgement(1)).empty());
    CHECK(node.tell(11, JobOver{generation(1)}) == Words{"over 11"});
    CHECK(node.wait(3599s).empty());
    CHECK(node.hear(Verdict{}).empty());
    CHECK(node.ended(0) == Words{"signal 0 9"});
    CHECK(node.ended(1).back() == "finish 0");
  }
  SECTION("but no other") {
    CHECK(node.wait(revocation) == Words{"signal 1 9"});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"signal 1 9"});
    CHECK(node.ended(0) == Words{"signal 0 9", "release 0", "release 1", "join last 1", "job finished"});
  }
}

TEST_CASE("workers of an older generation had no part in the end of the job, and are ended with it", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  node.tell(10, acknowledgement(1));
  node.tell(11, acknowledgement(1));
  CHECK(node.hear(Verdict{.generation = generation(2)}) == Words{"revoke 10", "signal 0 9", "revoke 11", "signal 1 9"});
}

TEST_CASE("a worker that loses a peer while the coordinator is away keeps its state until it is back", "[supervisor][stay]") {
  Node node = running();
  const Message lost = GenerationOver{generation(1), revoked};
  if (GENERATE(true, false)) {
    CHECK(node.tell(10, lost).empty());  // there is a coordinator: the end of the generation is its word
    CHECK(node.on(LinkDown{}) == Words{"revoke 10"});
  } else {
    node.on(LinkDown{});
    CHECK(node.tell(10, lost) == Words{"revoke 10"});
  }
  CHECK(node.tell(10, lost).empty());  // once
  CHECK(node.tell(10, acknowledgement(1)).empty());
  CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0 broken"});
  SECTION("it ends the generation") {
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "revoke 11"});
    CHECK(node.tell(10, acknowledgement(1)).empty());
    CHECK(node.tell(11, acknowledgement(1)) == Words{"join last 1"});
    CHECK(node.hear(world(2, 2)) == Words{"welcome 10", "welcome 11"});
  }
  SECTION("it means to go on with it, and is told why it cannot") {
    CHECK(node.hear(Resumed{generation(1)}) == Words{"failed 0 1 job"});
    CHECK(node.wait(returning).empty());
  }
}

TEST_CASE("two workers that lost each other and live are connected again by a new generation, in the same processes",
          "[supervisor][stay]") {
  constexpr Duration known_by = Timeouts{}.heartbeat_limit + Timeouts{}.reconnect_grace;
  Node node = running();
  const Message lost = GenerationOver{generation(1), {Code::peer_lost, Remedy::rejoin, "rank 1 is gone: connection reset"}};
  CHECK(node.tell(10, lost).empty());
  node.now += 1s;
  CHECK(node.tell(11, lost).empty());
  SECTION("nobody knows of a death") {
    CHECK(node.wait(known_by - 1s - 1ns).empty());
    CHECK(node.wait(1ns) == Words{"failed 0 1 job"});
    CHECK(node.said.find("connection reset") != node.said.npos);
    CHECK(node.wait(known_by).empty());  // once
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "revoke 11"});
  }
  SECTION("a death is the better reason") {
    node.hear(Revoke{generation(1), revoked});
    CHECK(node.wake_at() == node.now + revocation);
  }
  SECTION("the coordinator is away: they are held instead") {
    CHECK(node.on(LinkDown{}) == Words{"revoke 10", "revoke 11"});
    CHECK(node.wait(known_by).empty());
  }
}

TEST_CASE("a worker whose own device failed is named at once, and no loss of its peers stands for it", "[supervisor][stay]") {
  Node node = running();
  const Failure why{Code::peer_lost, Remedy::rejoin, "rank 1 is gone"}, failed{Code::peer_lost, Remedy::abort_group, "NCCL failed"};
  const bool is_first = GENERATE(true, false);
  if (!is_first) CHECK(node.tell(10, GenerationOver{generation(1), why}).empty());
  CHECK(node.tell(11, GenerationOver{generation(1), failed, {}, false, true}).empty());
  if (is_first) CHECK(node.tell(10, GenerationOver{generation(1), why}).empty());
  SECTION("nobody died") {
    CHECK(node.wait(500ms - 1ns).empty());
    CHECK(node.wait(1ns) == Words{"failed 1 1 job"});
    CHECK(node.said.find("NCCL failed") != node.said.npos);
    CHECK(node.wait(Timeouts{}.heartbeat_limit + Timeouts{}.reconnect_grace).empty());  // once
  }
  SECTION("a death is the better reason") {
    node.hear(Revoke{generation(1), revoked});
    CHECK(node.wake_at() == node.now + revocation);
  }
}

TEST_CASE("what a worker makes of elrun's signal does not replace what it said of itself while it lived", "[supervisor][stay]") {
  Node node;
  node.on(LinkUp{});
  node.hear(world(1, 2));
  for (std::uint32_t i = 0; i < 2; ++i) {  // a session without a Job: a program that is to end when its generation is over
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, Hello{.pid = 100 + i, .rank = i, .world = 2});
  }
  node.tell(11, GenerationOver{generation(1), {Code::peer_lost, Remedy::abort_group, "NCCL failed"}, {}, false, true});
  CHECK(node.wait(500ms) == Words{"failed 1 1 job"});
  const auto ended = [&](std::uint32_t worker, Ending ending, Duration ago) {
    const Words words = node.on(WorkerEnded{LocalRank{worker}, ending, {}, ago});
    return std::ranges::any_of(words, [](const std::string& word) { return word.starts_with("failed "); });
  };
  SECTION("it ends by itself: that is its end") { CHECK(ended(1, {.exit_code = 3}, 0s)); }
  SECTION("elrun ends it") {
    const Words ends = node.hear(Revoke{generation(1), revoked});
    REQUIRE(std::ranges::count(ends, "signal 1 15") == 1);
    node.now += 1s;
    SECTION("with a code of its own: a consequence") { CHECK_FALSE(ended(1, {.exit_code = 1}, 0s)); }
    SECTION("though it had failed before that, as its record says") { CHECK(ended(1, {.exit_code = 1}, 2s)); }
    SECTION("one of which nothing was told may have failed beside it") { CHECK(ended(0, {.exit_code = 1}, 0s)); }
  }
}

TEST_CASE("a worker cannot reach a peer: the coordinator is told at once, and again by whoever did not hear it", "[supervisor][stay]") {
  Node node = running();
  const Message unreachable =
      GenerationOver{generation(1), {.code = Code::peer_lost, .what = "rank 3 cannot be reached", .peer = Rank{3}}, {}, true};
  SECTION("at once, once") {
    CHECK(node.tell(10, unreachable) == Words{"unreachable 0 3 job"});
    CHECK(node.tell(10, unreachable).empty());
    CHECK(node.tell(11, unreachable) == Words{"unreachable 1 3 job"});
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "revoke 11"});
  }
  SECTION("when it is back") {
    node.on(LinkDown{});
    CHECK(node.tell(10, unreachable) == Words{"revoke 10"});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0 broken"});
    CHECK(node.hear(Resumed{generation(1)}) == Words{"unreachable 0 3 job", "failed 0 1 job"});
  }
}

TEST_CASE("an agent that was itself asleep blames no worker for what it has not yet heard", "[supervisor][stay]") {
  constexpr Duration asleep = 20ms + returning;  // timers come first
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  SECTION("the acknowledgement waits in its socket") {
    CHECK(node.wait(revocation + 2s).empty());
    node.tell(10, acknowledgement(1));
    CHECK(node.tell(11, acknowledgement(1)) == Words{"join last 1"});
  }
  SECTION("that they are back does") {
    node.tell(10, acknowledgement(1));
    node.tell(11, acknowledgement(1));
    node.hear(world(2, 2));
    CHECK(node.wait(asleep + 100ms).empty());
    CHECK(node.tell(10, Returned{generation(2)}).empty());
    CHECK(node.wait(returning - 1ns).empty());  // they may have slept, too
    CHECK(node.wait(1ns) == Words{"signal 1 9"});
  }
}

TEST_CASE("an agent that is always a little late still ends who does not acknowledge", "[supervisor][stay]") {
  Node node = running();
  node.hear(Revoke{generation(1), revoked});
  const Instant begun = node.now;
  bool killed = false;
  while (!killed && node.now < begun + 60s) {
    node.now = *node.wake_at() + 100ms;
    killed = !node.on(Tick{}).empty();
  }
  CHECK(killed);
}

TEST_CASE("a step goes on after a sleep of the whole machine for as long as it might have", "[supervisor][hang]") {
  Node node{1, 10s, HangSign::progress};
  node.on(LinkUp{});
  node.hear(world(1, 1));
  node.on(WorkerStarted{LocalRank{0}, 100});
  node.tell(10, Hello{.rank = 0, .world = 1, .is_job = true});
  node.wait(1s);
  CHECK(node.wait(1h).empty());
  for (int i = 0; i < 4; ++i) CHECK(node.wait(1s).empty());
  CHECK(node.tell(10, StepDecided{generation(1), 1}) == Words{"progress 1"});
}

TEST_CASE("no worker hangs while its agent is asleep", "[supervisor][hang]") {
  Node node{1, 10s, HangSign::progress};
  node.on(LinkUp{});
  node.hear(world(1, 1));
  node.on(WorkerStarted{LocalRank{0}, 100});
  node.tell(10, Hello{.rank = 0, .world = 1, .is_job = true});
  CHECK(node.wait(1h).empty());
  CHECK(node.tell(10, StepDecided{generation(1), 1}) == Words{"progress 1"});
  CHECK(node.wait(10s) == Words{"stacks 0"});
}

TEST_CASE("a hang is not survived: those who hang cannot be told from those who wait for them", "[supervisor][stay]") {
  Node node{2, 10s, HangSign::progress};
  node.on(LinkUp{});
  node.hear(world(1, 2));
  for (std::uint32_t i = 0; i < 2; ++i) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    node.tell(10 + i, Hello{.rank = i, .world = 2, .is_job = true, .stays = true});
  }
  CHECK(node.wait(10s) == Words{"stacks 0", "stacks 1"});
  CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "signal 0 9", "revoke 11", "signal 1 9"});
}

TEST_CASE("a node tells each coordinator whether its workers have decided a step", "[supervisor]") {
  Node node;
  const auto has_trained = [&] {
    for (const Action& action : node.actions)
      if (const auto* send = std::get_if<Send>(&action))
        if (const auto* join = std::get_if<Join>(&send->message)) return join->has_trained;
    FAIL("it does not join");
    return false;
  };
  node.start(1, 2, true);
  node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
  node.on(LinkUp{});
  CHECK_FALSE(has_trained());
  node.tell(10, StepDecided{generation(1), 1});
  node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
  node.on(LinkUp{});
  CHECK(has_trained());
  SECTION("also when the workers are gone that did") {
    node.hear(Revoke{generation(1), revoked});
    node.ended(0), node.ended(1);
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
    CHECK(node.on(LinkUp{}) == Words{"join last 1"});
    CHECK(has_trained());
  }
}

}  // namespace elrun::test::supervisor_stay
