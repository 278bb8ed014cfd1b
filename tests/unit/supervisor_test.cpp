#include "tests/support/property.hpp"
#include "tests/unit/supervisor_node.hpp"

namespace elrun::test {

TEST_CASE("a job that goes well", "[supervisor]") {
  Node node;
  CHECK(node.on(LinkUp{}) == Words{"join last 0"});
  CHECK(node.hear(world(1, 2)) == Words{"spawn 0", "spawn 1"});
  CHECK(node.ended(0).empty());  // who is early waits for the others
  CHECK(node.ended(1) == Words{"done"});
  CHECK(node.hear(Verdict{}) == Words{"signal 0 9", "signal 1 9", "release 0", "release 1", "finish 0"});
  CHECK_FALSE(node.wake_at());
}

TEST_CASE("what failed beside the first, or before it, is told while the workers end", "[supervisor]") {
  Node node{4};
  node.start(1, 4);
  node.now += 10s;
  const auto ended = [&](std::uint32_t worker, Ending ending, Duration ago, std::string traceback = {}) {
    WorkerEnded e{LocalRank{worker}, ending, {}, ago};
    if (!traceback.empty()) e.death.error = "ValueError: x", e.death.traceback = std::move(traceback);
    return node.on(e);
  };
  const auto told = [&]() -> std::optional<WorkerFailed> {
    for (const Action& a : node.actions)
      if (const auto* send = std::get_if<Send>(&a))
        if (const auto* failed = std::get_if<WorkerFailed>(&send->message)) return *failed;
    return {};
  };
  CHECK(ended(0, {.exit_code = 3}, 10ms, std::string(3000, 't')) == Words{"failed 0 3"});
  REQUIRE(told());
  CHECK(told()->ago == 10ms);
  CHECK(told()->what == "exit code 3: ValueError: x");
  CHECK(told()->death.traceback.size() == 3000);
  node.now += 1s;
  SECTION("while the generation is being ended") {
    node.hear(Revoke{generation(1), revoked});
    node.now += 1s;
    // Its record is older than elrun's signal, which only cut it short.
    CHECK(ended(1, {.signal = SIGTERM}, 3s, std::string(3000, 't')) == Words{"failed 1 1", "signal 1 9"});
    CHECK(told()->ago == 3s);
    CHECK(told()->what == "signal 15 (SIGTERM) of elrun, after ValueError: x");
    CHECK(told()->death.traceback.size() == 3000);  // the first of this node so far
    // By itself, after the first: not told at length.
    CHECK(ended(2, {.exit_code = 1}, 0s, std::string(3000, 't')) == Words{"failed 2 1", "signal 2 9"});
    CHECK(told()->death.traceback.size() == death_beside_max);
    // Of elrun's signal alone: a consequence.
    const Words last = ended(3, {.signal = SIGTERM}, 0s);
    CHECK(std::count(last.begin(), last.end(), "join last 1") == 1);
    CHECK_FALSE(told());
  }
  SECTION("again when the coordinator was away, with the time that has passed") {
    node.on(LinkDown{});
    node.now += 2s;
    node.on(LinkUp{});
    node.hear(Resumed{generation(1)});
    REQUIRE(told());
    CHECK(told()->ago == 3s + 10ms);
    CHECK(told()->what == "exit code 3: ValueError: x");
  }
  SECTION("not when the job is over anyway") {
    node.hear(Verdict{3, "x", {}});
    CHECK(ended(1, {.exit_code = 1}, 0s) == Words{"signal 1 9"});
  }
}

TEST_CASE("who waits for a coordinator names it once, and what is wrong with it", "[supervisor]") {
  const auto said = [](const std::string& why) {
    Node node;
    node.on(LinkDown{{Code::unreachable, Remedy::retry, why}});
    return node.said;
  };
  CHECK(said("host:1: Connection refused") ==
        "waiting for the coordinator at host:1: Connection refused; elrun retries for another 600.0 s\n");
  CHECK(said("10.0.0.1:1: Connection refused") ==
        "waiting for the coordinator at host:1: 10.0.0.1:1: Connection refused; elrun retries for another 600.0 s\n");
}

TEST_CASE("a death is told with what explains it: a restart makes no report, which would say it", "[supervisor]") {
  Node node;
  node.start();
  WorkerDeath death;
  death.evidence = "OOM-killed by the kernel";
  node.on(WorkerEnded{LocalRank{1}, {.signal = SIGKILL}, death});
  CHECK(node.said == "rank 1 (node n, pid 101) ended by signal 9 (SIGKILL) in generation 1: OOM-killed by the kernel\n");
}

TEST_CASE("one death is told once, and how many restarts are left", "[supervisor]") {
  Node node;
  node.start();
  const auto revoke = [](std::uint32_t rank) {
    return Revoke{generation(1),
                  {Code::peer_lost, Remedy::rejoin, "worker ended by exit code 3; restart 1 of 3", Rank{rank}, {}, generation(1)}};
  };
  SECTION("a worker of this node, when it dies") {
    node.ended(1, {.exit_code = 3});
    CHECK(node.said == "rank 1 (node n, pid 101) ended by exit code 3 in generation 1\n");
    node.hear(revoke(1));
    CHECK(node.said.empty());
  }
  SECTION("one of another node, when it is heard of, also by whom it was not the first") {
    node.ended(1, {.exit_code = 3});
    node.hear(revoke(2));
    CHECK(node.said == "generation 1 is over: worker ended by exit code 3; restart 1 of 3\n");
  }
  node.ended(0, {.signal = SIGTERM});
  World next = world(2, 2);
  next.restarts.used = 1;
  node.hear(next);
  CHECK(node.said == "generation 2: 1 node, 2 workers, started 0 ms after the loss; 1 of 3 restarts used\n");
}

TEST_CASE("what is known of a job's failure comes with its end", "[supervisor]") {
  Node node;
  node.start();
  node.ended(0, {.exit_code = 3});
  node.ended(1, {.exit_code = 3});
  WorkerDeath death;
  death.error = "ValueError: x";
  node.hear(Verdict{3, "rank 0", {death}});
  const auto* finish = std::get_if<Finish>(&node.actions.back());
  REQUIRE(finish);
  REQUIRE(finish->deaths.size() == 1);
  CHECK(finish->deaths.front() == death);
}

TEST_CASE("a death is told at once, and the generation ends when the coordinator says so", "[supervisor]") {
  SECTION("other programs are asked first, and killed after the grace") {
    Node node;
    node.start();
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"failed 1 137"});
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"signal 0 15", "signal 1 9"});  // 1: what it left behind
    CHECK(node.wait(29s).empty());
    CHECK(node.wait(1s) == Words{"signal 0 9"});
    CHECK(node.ended(0, {.signal = SIGKILL}) == Words{"signal 0 9", "release 0", "release 1", "join last 1"});
    CHECK(node.hear(world(2, 2)) == Words{"spawn 0", "spawn 1"});
    CHECK(std::get<Spawn>(node.actions.at(1)).node_restarts == 1);
    CHECK(node.said.find("after the loss") != std::string::npos);
  }
  SECTION("a Job is killed at once, and told") {
    Node node;
    node.start(1, 2, true);
    CHECK(node.ended(1, {.exit_code = 3}) == Words{"failed 1 3 job"});
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "signal 0 9", "revoke 11", "signal 1 9"});
  }
  SECTION("the failure of another node's worker is none of ours") {
    Node node;
    node.start();
    node.hear(Revoke{generation(1), revoked});
    node.ended(0), node.ended(1);
    node.hear(world(2, 2));
    CHECK(std::get<Spawn>(node.actions.at(1)).node_restarts == 0);
  }
  SECTION("with the budget spent the verdict ends the job with the root cause's code") {
    Node node;
    node.start();
    node.ended(1, {.exit_code = 3});
    CHECK(node.hear(Verdict{3, "rank 1: exit code 3"}) == Words{"signal 0 15", "signal 1 9"});
    CHECK(node.ended(0, {.signal = SIGTERM}) == Words{"signal 0 9", "release 0", "release 1", "finish 3"});
    CHECK(node.report == "rank 1: exit code 3");
  }
  SECTION("a verdict that comes while workers are being stopped ends the job too") {
    Node node;
    node.start();
    node.ended(1, {.exit_code = 3});
    node.hear(Revoke{generation(1), revoked});
    CHECK(node.hear(Verdict{3, "x"}).empty());
    CHECK(node.ended(0).back() == "finish 3");
  }
}

TEST_CASE("generations fence", "[supervisor]") {
  Node node;
  node.start();
  CHECK(node.hear(Revoke{generation(7), revoked}).empty());
  CHECK(node.hear(world(2, 2)).empty());  // not before the end of 1 is acknowledged
  node.hear(Revoke{generation(1), revoked});
  CHECK(node.hear(Revoke{generation(1), revoked}).empty());
  node.ended(0), node.ended(1);
  CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"acknowledge 1"});
}

TEST_CASE("a world without a place for this node ends it", "[supervisor]") {
  Node node;
  node.on(LinkUp{});
  CHECK(node.hear(world(1, 1)) == Words{"finish 70"});
}

TEST_CASE("a refused node says why and ends with the code for contradictions", "[supervisor]") {
  Node node;
  node.on(LinkUp{});
  CHECK(node.hear(Refused{{Code::mismatch, Remedy::fix_config, "run a is not run b"}}) == Words{"finish 78"});
  CHECK(node.report.find("run a is not run b") != std::string::npos);
}

TEST_CASE("a node that finds no coordinator by the join deadline says for whom it waited", "[supervisor]") {
  Node node;
  node.on(LinkDown{{Code::unreachable, Remedy::retry, "connection refused"}});
  CHECK(node.said.find("host:1") != std::string::npos);
  CHECK(node.said.find("600.0 s") != std::string::npos);
  CHECK(node.wake_at() == Instant{} + 600s);
  CHECK(node.wait(599s).empty());
  CHECK(node.wait(1s) == Words{"leave", "finish 170"});
  CHECK(node.report.find("connection refused") != std::string::npos);

  SECTION("one that waits with a coordinator waits as long as that says, without end as a spare") {
    Node spare;
    spare.on(LinkUp{});
    CHECK(spare.wake_at() == Instant{} + 600s);  // until it answers
    spare.hear(Waiting{"generation 1 runs with 2 nodes; this node is a spare", generation(1)});
    CHECK_FALSE(spare.wake_at());
    spare.on(LinkDown{{Code::unreachable, Remedy::retry, "gone"}});
    CHECK(spare.wait(600s).back() == "finish 170");
  }
}

TEST_CASE("a coordinator that has nobody else may no longer be where its name leads: the line looks again", "[supervisor]") {
  Node node;
  node.on(LinkUp{});
  node.hear(Waiting{"1 of 2 nodes"});
  CHECK(node.wait(10s - 1ns).empty());
  node.hear(Waiting{"1 of 2 nodes; gone: node1"});
  CHECK(node.wait(1ns) == Words{"look again"});
  CHECK(node.wait(10s) == Words{"look again"});
  SECTION("others run: it is the one") { node.hear(Waiting{"this node is a spare", generation(1)}); }
  SECTION("the line is down: it looks at every attempt") {
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "gone"}});
    node.on(LinkUp{});
  }
  SECTION("there is a world") { node.hear(world(1, 2)); }
  CHECK(node.wait(20s).empty());
}

TEST_CASE("coordinators that come and go end the wait for one that stays", "[supervisor]") {
  Node node;
  node.start();
  const auto comes_for = [&](Duration up) {
    node.on(LinkUp{});
    node.hear(Resumed{generation(1)});
    node.wait(up);
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
  };
  node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
  for (int i = 0; i < 59; ++i) {
    REQUIRE(node.wait(10s).empty());
    comes_for(9s);
  }
  SECTION("when the grace is used up, which was prolonged once where less than 30 s of it were left") {
    CHECK(node.wait(20s - 1ns).empty());
    CHECK(node.wait(1ns) == Words{"signal 0 15", "signal 1 15"});
  }
  SECTION("which is whole again after one that stayed for two leases") {
    comes_for(10s);
    CHECK(node.wait(600s - 1ns).empty());
  }
  SECTION("or began a generation") {
    node.on(LinkUp{});
    node.hear(Revoke{generation(1), revoked});
    node.ended(0), node.ended(1);
    node.hear(world(2, 2));
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
    CHECK(node.wait(600s - 1ns).empty());
  }
}

TEST_CASE("workers outlive a lost coordinator", "[supervisor]") {
  Node node;
  node.start();
  node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
  CHECK(node.said.find("workers go on") != std::string::npos);
  SECTION("and what happened meanwhile is told when the generation goes on") {
    node.ended(0);
    node.ended(1, {.exit_code = 5});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0 broken"});
    CHECK(node.hear(Resumed{generation(1)}) == Words{"failed 1 5"});
  }
  SECTION("what happens while the other nodes are waited for is told as well, as long as it matters") {
    node.on(LinkUp{});
    CHECK(node.ended(1, {.exit_code = 5}) == Words{"failed 1 5", "join resuming last 1 seat 0 broken"});
    node.hear(Resumed{generation(1)});
    CHECK(node.ended(0, {.exit_code = 5}) == Words{"failed 0 5"});
  }
  SECTION("a worker that has lost a peer cannot go on, which its node says once to a coordinator that does not know") {
    const Failure lost{Code::peer_lost, Remedy::rejoin, "rank 1 is gone"};
    node.tell(10, Hello{.rank = 0, .world = 2, .is_job = true});
    CHECK(node.tell(11, GenerationOver{generation(1), lost}).empty());  // nobody knows who that is
    node.on(LinkUp{});
    CHECK(node.tell(10, GenerationOver{generation(2), lost}).empty());
    CHECK(node.tell(10, GenerationOver{generation(1), {}}).empty());
    CHECK(node.tell(10, GenerationOver{generation(1), lost}) == Words{"join resuming last 1 seat 0 broken"});
    CHECK(node.tell(10, GenerationOver{generation(1), lost}).empty());
    node.hear(Revoke{generation(1), revoked});
    node.ended(0), node.ended(1);
    node.hear(world(2, 2));
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 2 seat 0"});  // that was the generation before
  }
  SECTION("who coordinated it last is told to whoever answers") {
    node.on(LinkUp{});
    node.hear(Resumed{generation(1), true, 2});
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0 coordinated by 2"});
    node.hear(Resumed{generation(1)});
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0"});
    node.hear(Revoke{generation(1), revoked});
    node.ended(0), node.ended(1);
    World next = world(2, 2);
    next.coordinated_by = 0;
    node.hear(next);
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 2 seat 0 coordinated by 0"});
  }
  SECTION("all done meanwhile") {
    node.ended(0), node.ended(1);
    node.on(LinkUp{});
    CHECK(node.hear(Resumed{generation(1)}) == Words{"done"});
  }
  SECTION("a job that is over is told to whoever answers") {
    node.tell(10, Hello{.rank = 0, .world = 2, .is_job = true});
    node.tell(10, JobOver{generation(1)});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0", "job finished"});
    SECTION("before that could conclude from its Join that nobody else will come") {
      node.hear(Resumed{generation(1), true, 1});
      node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
      CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0", "job finished"});
    }
  }
  SECTION("workers that are being ended are waited for, but go on with nothing") {
    node.on(LinkUp{});
    node.hear(Revoke{generation(1), revoked});
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1"});
    node.ended(0);
    CHECK(node.ended(1).back() == "join last 1");
    SECTION("whose place is told, for whoever never heard of it") {
      const auto& join = std::get<Join>(std::get<Send>(node.actions.back()).message);
      REQUIRE(join.seat);
      CHECK(*join.seat == world(1, 2).seat);
    }
  }
  SECTION("or are stopped when nobody takes over within the grace") {
    node.wait(300s);
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "another reason"}});  // does not prolong it
    CHECK(node.wait(299s).empty());
    CHECK(node.wait(1s) == Words{"signal 0 15", "signal 1 15"});
    node.ended(0);
    CHECK(node.ended(1).back() == "finish 171");
  }
}

TEST_CASE("a node whose workers have all ended well says so when no coordinator comes", "[supervisor]") {
  Node node;
  node.start();
  node.ended(0), node.ended(1, {.exit_code = GENERATE(0, 3)});
  const bool well = node.actions.size() == 1 && std::holds_alternative<WorkersDone>(std::get<Send>(node.actions[0]).message);
  node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
  CHECK(node.said.find("workers go on") == std::string::npos);
  CHECK(node.wait(600s).back() == "finish 171");
  CHECK((node.report.find("; all workers of this node had ended with 0") != std::string::npos) == well);
}

TEST_CASE("a worker finds its place", "[supervisor]") {
  Node node;
  node.on(LinkUp{});
  node.hear(world(1, 2, 3));                                               // ranks 4 and 5 are here
  CHECK(node.tell(8, Hello{.rank = 5, .world = 6}) == Words{"refuse 8"});  // its process is not there yet, so this is another one
  for (std::uint32_t i = 0; i < 2; ++i) node.on(WorkerStarted{LocalRank{i}, 100 + i});
  CHECK(node.tell(1, Hello{.rank = 5, .world = 6}) == Words{"welcome 1"});
  const Place& place = std::get<Welcome>(std::get<Answer>(node.actions[0]).message).place;
  CHECK(place.membership == Membership{generation(1), Rank{5}, WorldSize{6}});
  CHECK(place.local_rank == LocalRank{1});
  CHECK(place.elastic);
  CHECK(node.tell(2, Hello{.rank = 5, .world = 6}) == Words{"refuse 2"});  // twice
  CHECK(node.tell(3, Hello{.rank = 3, .world = 6}) == Words{"refuse 3"});  // of another node
  CHECK(node.tell(4, Hello{.rank = 6, .world = 6}) == Words{"refuse 4"});
  CHECK(node.tell(5, Hello{.rank = 4, .world = 2}) == Words{"refuse 5"});
  CHECK(node.tell(6, StoreRequest{}) == Words{"refuse 6"});  // before Hello
  CHECK(node.tell(7, JobOver{generation(1)}).empty());
}

TEST_CASE("progress is told once per step, and recovery once per loss", "[supervisor]") {
  Node node;
  node.start(1, 2, true);
  CHECK(node.tell(10, StepDecided{generation(1), 1}) == Words{"progress 1"});
  CHECK(node.tell(11, StepDecided{generation(1), 1}).empty());
  CHECK(node.tell(11, StepDecided{generation(9), 2}).empty());
  node.ended(0, {.signal = SIGKILL});
  node.hear(Revoke{generation(1), revoked});
  node.ended(1, {.signal = SIGKILL});
  node.now += 1500ms;
  node.start(2, 2, true);
  CHECK(node.tell(20, StepDecided{generation(2), 1}) == Words{"progress 1"});  // done again
  CHECK(node.said.find("recovered: step 1 decided 1.5 s after the loss") != std::string::npos);
  node.tell(20, StepDecided{generation(2), 2});
  CHECK(node.said.empty());
}

TEST_CASE("a step counts as decided although a worker's word of it comes behind the loss that ends its generation", "[supervisor]") {
  Node node;
  node.start(1, 2, true);
  node.tell(10, StepDecided{generation(1), 1});
  node.ended(0, {.signal = SIGKILL});
  node.hear(Revoke{generation(1), revoked});
  CHECK(node.tell(11, StepDecided{generation(1), 2}) == Words{"progress 2"});
  CHECK(node.tell(11, StepDecided{generation(1), 2}).empty());
  CHECK(node.said.empty());  // nothing has recovered yet
  node.ended(1, {.signal = SIGKILL});
  CHECK(node.tell(11, StepDecided{generation(1), 3}).empty());
}

TEST_CASE("store calls go to the coordinator and come back", "[supervisor]") {
  Node node;
  node.start(1, 1 + 1, true);
  const auto call = [&](std::uint64_t id, StoreOp op = StoreOp::get, std::uint64_t number = 1) {
    return node.tell(10, StoreRequest{.id = id, .op = op, .generation = generation(number), .wait = 10s, .keys = {"k"}});
  };
  CHECK(call(1) == Words{"call 10.1"});
  CHECK(call(1) == Words{"reply 10.1 protocol"});
  CHECK(node.hear(StoreResult{10, {.id = 1}}) == Words{"reply 10.1 ok"});
  CHECK(node.hear(StoreResult{10, {.id = 1}}).empty());
  CHECK(call(2, StoreOp::get, 7) == Words{"reply 10.2 generation_over"});
  SECTION("while the coordinator is away they wait; what cannot be repeated fails") {
    call(3), call(4, StoreOp::add);
    CHECK(node.on(LinkDown{}) == Words{"reply 10.4 unreachable"});
    CHECK(call(5, StoreOp::add).empty());
    node.on(LinkUp{});
    CHECK(call(6).empty());  // a fresh coordinator may not know this generation yet
    CHECK(node.hear(Resumed{generation(1)}) == Words{"call 10.3", "call 10.5", "call 10.6"});
  }
  SECTION("a fresh coordinator's store first hears what was done") {
    node.tell(10, StoreRequest{.id = 3, .op = StoreOp::set, .generation = generation(1), .wait = 10s, .keys = {"k"}});
    node.hear(StoreResult{10, {.id = 3, .version = 4}});
    node.tell(10, StoreRequest{.id = 4, .op = StoreOp::get, .generation = generation(1), .wait = 10s, .keys = {"other"}});
    node.on(LinkDown{});
    node.on(LinkUp{});
    CHECK(node.hear(Resumed{generation(1), true}) == Words{"call 0.0", "call 0.1", "call 10.4"});  // the set, that it is all, and the call
    node.on(LinkDown{});
    node.on(LinkUp{});
    CHECK(node.hear(Resumed{generation(1), false}) == Words{"call 10.4"});
  }
  SECTION("a node that has forgotten some of it ends the generation, and a coordinator that saw all of it goes on") {
    const ByteVector large((16_MiB).value() - 1000);
    for (std::uint64_t id = 3; id < 8; ++id) {
      node.tell(10,
                StoreRequest{
                    .id = id, .op = StoreOp::set, .generation = generation(1), .wait = 10s, .keys = {std::to_string(id)}, .value = large});
      node.hear(StoreResult{10, {.id = id, .version = id}});
    }
    call(9);
    node.on(LinkDown{});
    node.on(LinkUp{});
    CHECK(node.hear(Resumed{generation(1), false}) == Words{"call 10.9"});
    node.on(LinkDown{});
    node.on(LinkUp{});
    SECTION("for good, where it was asked to leave") {
      node.on(SignalCame{SIGTERM});
      const Words words = node.hear(Resumed{generation(1), true});
      CHECK(std::find(words.begin(), words.end(), "leave") != words.end());
      return;
    }
    const Words words = node.hear(Resumed{generation(1), true});
    CHECK(std::none_of(words.begin(), words.end(), [](const std::string& word) { return word.starts_with("call"); }));
    CHECK(node.said.find("put more into its store than the 64 MiB that a node keeps for the next one: the generation cannot go on") !=
          std::string::npos);
    Words last;
    for (std::uint32_t i = 0; i < 2; ++i) last = node.ended(i, {.signal = SIGTERM});
    CHECK(std::find(last.begin(), last.end(), "join last 1") != last.end());
  }
  SECTION("a caller that hangs up is forgotten") {
    call(3);
    CHECK(node.on(WorkerHungUp{10}) == Words{"caller gone"});
    CHECK(node.hear(StoreResult{10, {.id = 3}}).empty());
  }
  SECTION("there is a bound") {
    for (std::uint64_t id = 100; id < 100 + store_calls_per_worker_max; ++id) call(id);
    CHECK(call(99) == Words{"reply 10.99 exhausted"});
  }
  SECTION("none is taken once the generation is over") {
    node.hear(Revoke{generation(1), revoked});
    CHECK(call(3) == Words{"reply 10.3 generation_over"});
  }
}

TEST_CASE("a spare that was never needed says so at the end, for it may have been meant as a job of its own", "[supervisor]") {
  Node node;
  node.on(LinkUp{});
  node.hear(Waiting{"this node is a spare", generation(1)});
  CHECK(node.hear(Verdict{}).back() == "finish 0");
  CHECK(node.said.find("no worker of it ever ran") != std::string::npos);
}

TEST_CASE("a coordinating node runs no worker and is done at once", "[supervisor]") {
  Node node{0};
  node.on(LinkUp{});
  CHECK(node.hear(world(1, 0)) == Words{"done"});
  CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"join last 1"});
  node.hear(world(2, 0));
  CHECK(node.hear(Verdict{}) == Words{"finish 0"});
}

TEST_CASE("whatever happens: no two lives of a worker at once, nothing left running, every wait ends", "[supervisor][property]") {
  elrun::test::for_all_seeds(3000, [](Rng& rng) {
    const auto workers = static_cast<std::uint32_t>(rng.below(4));
    Node node{workers};
    std::vector<bool> alive(workers, false), zombie(workers, false);
    std::uint64_t acknowledged = 0, newest = 0;
    bool finished = false, stubborn = rng.chance(0.3);
    std::vector<SignalGroup> signals;  // sent, not yet obeyed
    const auto check = [&] {
      for (const Action& a : std::exchange(node.actions, {})) {
        if (const auto* s = std::get_if<SignalGroup>(&a)) signals.push_back(*s);
        if (const auto* s = std::get_if<Spawn>(&a)) {
          REQUIRE_FALSE(alive[s->worker.value()]);
          REQUIRE_FALSE(zombie[s->worker.value()]);
          REQUIRE(s->world.generation.number > acknowledged);
          alive[s->worker.value()] = true;
        } else if (const auto* r = std::get_if<Release>(&a)) {
          REQUIRE_FALSE(alive[r->worker.value()]);
          zombie[r->worker.value()] = false;
        } else if (const auto* send = std::get_if<Send>(&a)) {
          const auto* join = std::get_if<Join>(&send->message);
          if (join && !join->resuming) {  // which says that no process of `last` is left
            acknowledged = join->last.number;
            for (std::uint32_t i = 0; i < workers; ++i) REQUIRE_FALSE((alive[i] || zombie[i]));
          }
        } else if (std::holds_alternative<Finish>(a)) {
          REQUIRE_FALSE(finished);
          finished = true;
          for (std::uint32_t i = 0; i < workers; ++i) REQUIRE_FALSE((alive[i] || zombie[i]));
        }
      }
    };
    const auto end = [&](std::uint32_t i, Ending e) {
      alive[i] = false, zombie[i] = true;
      node.ended(i, e), check();
    };
    const auto obey = [&] {
      while (!signals.empty()) {
        const SignalGroup s = signals.front();
        signals.erase(signals.begin());
        if (alive[s.worker.value()] && (s.number == SIGKILL || !stubborn)) end(s.worker.value(), {.signal = s.number});
      }
    };
    for (int i = 0; i < 60 && !finished; ++i) {
      switch (rng.below(10)) {
        case 0: node.on(LinkUp{}); break;
        case 1: node.on(LinkDown{revoked}); break;
        case 2:
        case 3:
        case 4:
          newest += rng.below(2);
          node.hear(world(std::max<std::uint64_t>(newest, 1), workers));
          break;
        case 5: node.hear(Revoke{generation(std::max<std::uint64_t>(newest, 1)), revoked}); break;
        case 6: node.wait(Duration{static_cast<std::int64_t>(rng.below(40'000'000'000))}); break;
        case 7:
          if (workers > 0)
            if (const auto w = static_cast<std::uint32_t>(rng.below(workers)); alive[w]) {
              end(w, {.exit_code = static_cast<int>(rng.below(2))});
            }
          break;
        case 8:
          if (rng.chance(0.1)) node.hear(Verdict{static_cast<int>(rng.below(2)), "x"});
          break;
        case 9:
          if (rng.chance(0.1)) node.on(SignalCame{SIGTERM});
          break;
      }
      check();
      obey();
    }
    for (int i = 0; i < 20 && !finished; ++i) {  // left alone, with all workers hung and the coordinator gone, it ends by its deadlines
      node.on(LinkUp{}), check();                // and back, but mute
      node.on(LinkDown{revoked}), check();
      if (const auto at = node.wake_at()) node.now = std::max(node.now, *at);
      node.on(Tick{}), check(), obey();
    }
    REQUIRE(finished);
  });
}

}  // namespace elrun::test
