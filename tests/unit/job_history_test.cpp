// The record that a real supervisor's turns leave, and the pages that are made from it.
#include "launcher/http/job_history.hpp"

#include <csignal>

#include <nlohmann/json.hpp>

#include "launcher/http/pages.hpp"
#include "launcher/report/events.hpp"
#include "tests/support/catch.hpp"
#include "tests/unit/job_history_node.hpp"

namespace elrun::test::history {

TEST_CASE("a node's life is counted as it happened", "[history]") {
  Node node;
  node.on(LinkUp{});
  node.hear(Waiting{"1 of 2 nodes"});
  CHECK(node.record().connected);
  CHECK(node.record().waiting_for == "1 of 2 nodes");
  node.pass(2s);
  node.begin(1);
  CHECK(node.record().phase == Supervisor::Phase::running);
  CHECK(node.record().waiting_for.empty());
  CHECK(node.record().meeting_seconds.sum() == 2);
  CHECK(node.record().workers.at(1).pid == 101);
  CHECK(node.record().worker_restarts.at(CauseLabel::other) == 0);  // the first start is no restart

  SECTION("a worker that fails is a loss until the next generation's workers start") {
    node.end(0, {.signal = SIGKILL});
    CHECK(has(node.record().last_failure, "rank 2 (local rank 0, pid 100) ended by signal 9"));
    CHECK(node.record().workers.at(0).state == WorkerRecord::State::failed);
    node.pass(1s);
    node.hear(Revoke{generation(1), worker_killed});
    CHECK(node.record().phase == Supervisor::Phase::stopping);
    CHECK(node.record().node_restarts == 1);
    node.end(1, {.signal = SIGTERM});
    CHECK(node.record().phase == Supervisor::Phase::joining);
    CHECK(node.record().workers.empty());
    node.pass(1s);
    node.begin(2);
    CHECK(node.record().recovery_seconds.at(CauseLabel::worker).sum() == 2);
    CHECK(node.record().worker_restarts.at(CauseLabel::worker) == 2);
    CHECK(node.record().worker_exits.at({0, SIGKILL}) == 1);
    CHECK(node.record().worker_exits.at({0, SIGTERM}) == 1);
    CHECK(node.record().last_failure == worker_killed.what);
    CHECK(node.record().coordinator_changes == 0);
  }
  SECTION("the loss of another node is not this one's failure") {
    node.hear(Revoke{generation(1), node_lost});
    node.end(0, {.signal = SIGTERM}), node.end(1, {.signal = SIGTERM});
    node.begin(2);
    CHECK(node.record().worker_restarts.at(CauseLabel::node) == 2);
    CHECK(node.record().node_restarts == 0);
    CHECK(node.record().recovery_seconds.contains(CauseLabel::node));
  }
  SECTION("growth is no loss") {
    node.hear(Revoke{generation(1), grown});
    node.end(0, {.signal = SIGTERM}), node.end(1, {.signal = SIGTERM});
    node.begin(2);
    CHECK(node.record().worker_restarts.at(CauseLabel::growth) == 2);
    CHECK(node.record().recovery_seconds.empty());
    CHECK(node.record().last_failure.empty());
  }
  SECTION("a generation that is stale is neither growth nor a loss") {
    node.hear(Revoke{generation(1), {Code::generation_over, Remedy::rejoin, "generation 1 is over; the newest is 7"}, EndCause::stale});
    node.end(0, {.signal = SIGTERM}), node.end(1, {.signal = SIGTERM});
    node.begin(8, 2);
    CHECK(node.record().worker_restarts.at(CauseLabel::other) == 2);
    CHECK_FALSE(node.record().worker_restarts.contains(CauseLabel::growth));
    CHECK(node.record().recovery_seconds.empty());
    CHECK(node.record().last_failure.empty());
  }
  SECTION("the cause counts, not the code of the failure") {
    node.hear(Revoke{generation(1), grown, EndCause::leave});
    node.end(0, {.signal = SIGTERM}), node.end(1, {.signal = SIGTERM});
    node.begin(2);
    CHECK(node.record().worker_restarts.at(CauseLabel::node) == 2);
  }
  SECTION("another coordinator is noticed, whether it goes on with what runs or begins anew") {
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "gone"}});
    CHECK_FALSE(node.record().connected);
    node.on(LinkUp{});
    node.hear(Resumed{generation(1), true});
    CHECK(node.record().coordinator_changes == 1);
    node.hear(Revoke{generation(1), node_lost});
    node.end(0, {.signal = SIGTERM}), node.end(1, {.signal = SIGTERM});
    node.begin(5, 2);
    CHECK(node.record().coordinator_changes == 2);
  }
  SECTION("a world that the supervisor does not take leaves no trace") {
    node.hear(world(1, 9));
    CHECK(node.record().world.generation == generation(1));
    CHECK(node.record().meetings.at(Meeting::world) == 1);
  }
  SECTION("steps are counted, with the time between two of one generation") {
    node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
    CHECK(node.record().workers.at(0).is_job);
    node.on(FromWorker{5, StepDecided{generation(1), 10}});
    node.pass(1s);
    node.on(FromWorker{5, StepDecided{generation(1), 11, 90, 1.5f}});
    node.on(FromWorker{5, StepDecided{generation(1), 11, 90, 1.5f}});  // another worker's word for the same step
    CHECK(node.record().steps == 2);
    CHECK(node.record().last_step.decided == StepNumber{11});
    CHECK(node.record().last_step.steps == 90);
    CHECK(node.record().last_step.loss == 1.5f);
    CHECK(node.record().step_seconds.count() == 1);
    CHECK(node.record().step_seconds.sum() == 1);
  }
  SECTION("a failure that ends the job stays in words") {
    node.hear(Verdict{.exit_code = 3, .report = "rank 0 ended by exit code 3"});
    node.end(0, {.signal = SIGTERM}), node.end(1, {.signal = SIGTERM});
    CHECK(node.record().phase == Supervisor::Phase::finished);
    CHECK(has(node.record().last_failure, "rank 0 ended by exit code 3"));
  }
}

TEST_CASE("a worker's end is counted as the supervisor judges it", "[history]") {
  Node node;
  node.on(LinkUp{});
  World first = world(1);
  first.takes_more = true;
  node.hear(first);
  for (const std::uint32_t i : {0u, 1u}) {
    node.on(WorkerStarted{LocalRank{i}, 100 + i});
    Hello hello{.pid = 100 + i, .rank = 2 + i, .world = 4, .is_job = true, .stays = true, .says_ready = true};
    hello.says_end = true;
    node.on(FromWorker{10 + i, hello});
  }
  const auto lose_one = [&] {
    node.end(1, {.signal = SIGKILL});
    node.hear(Revoke{generation(1), worker_killed});
    node.on(FromWorker{10, GenerationOver{generation(1), {.code = Code::generation_over}}});
    World smaller = world(2);
    smaller.takes_more = true, smaller.seat.world_size = 3;
    node.hear(smaller);
    node.on(WorkerStarted{LocalRank{1}, 201});
  };
  SECTION("exit code 0 in the middle of the job is a failure, as soon as it is known for one") {
    node.end(1, {});
    CHECK(node.record().workers.at(1).state == WorkerRecord::State::running);
    node.on(WorkerHungUp{11});
    CHECK(node.record().workers.at(1).state == WorkerRecord::State::failed);
    CHECK(node.record().worker_exits.at({1, 0}) == 1);
    CHECK(has(node.record().last_failure, "rank 3 (local rank 1, pid 101) ended by exit code 0 with no step decided"));
    node.hear(Revoke{generation(1), worker_killed});
    CHECK(node.record().node_restarts == 1);
  }
  SECTION("elrun's kill of a worker that waits for its place is none") {
    lose_one();
    const NodeRecord before = node.record();
    node.on(FromWorker{10, JobOver{generation(2)}});
    node.end(1, {.signal = SIGKILL});
    CHECK(node.record().last_failure == before.last_failure);
    CHECK(node.record().ledger.incidents().size() == before.ledger.incidents().size());
  }
  SECTION("its own failure is one, of no rank of this world") {
    lose_one();
    node.end(1, {.exit_code = 3});
    CHECK(has(node.record().last_failure, "the successor of rank 3 (local rank 1, pid 201) ended by exit code 3 in generation 2"));
  }
  SECTION("a worker that was to stay fails when its generation is over") {
    node.hear(Revoke{generation(1), grown, EndCause::growth});
    CHECK(node.record().node_restarts == 0);
    node.end(1, {.signal = SIGSEGV});
    CHECK(has(node.record().last_failure, "rank 3 (local rank 1, pid 101) ended by signal 11"));
    CHECK(node.record().node_restarts == 1);
    node.pass(2s);
    node.on(FromWorker{10, GenerationOver{generation(1), {.code = Code::generation_over}}});
    node.hear(world(2));
    CHECK(node.record().recovery_seconds.at(CauseLabel::worker).sum() == 2);
    CHECK(node.record().worker_restarts.at(CauseLabel::worker) == 1);
  }
}

TEST_CASE("a node that meets nobody is counted as such", "[history]") {
  Node node;
  node.on(LinkUp{});
  SECTION("refused") {
    node.hear(Refused{{Code::mismatch, Remedy::fix_config, "other options"}});
    CHECK(node.record().meetings.at(Meeting::refused) == 1);
    CHECK(has(node.record().last_failure, "other options"));
  }
  SECTION("too late") {
    node.pass(Timeouts{}.join);
    node.on(Tick{});
    CHECK(node.record().meetings.at(Meeting::deadline) == 1);
  }
}

TEST_CASE("the metrics have their names, and tell what is known", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.end(1, {});
  node.pass(3s);
  const std::string text = node.metrics_text();
  for (const char* line :
       {"elrun_build_info{version=\"1.2.3\"} 1\n", "elrun_up_seconds 3\n", "elrun_generation 1\n", "elrun_nodes{state=\"active\"} 2\n",
        "elrun_nodes_min 1\n", "elrun_nodes_max 3\n", "elrun_world_size 4\n", "elrun_workers{state=\"running\"} 1\n",
        "elrun_workers{state=\"done\"} 1\n", "elrun_worker_restarts_total{cause=\"worker\"} 0\n",
        "elrun_worker_exits_total{code=\"0\",signal=\"\"} 1\n", "elrun_rendezvous_total{result=\"world\"} 1\n",
        "elrun_rendezvous_duration_seconds_count 1\n", "elrun_is_coordinator 1\n", "elrun_coordinator_changes_total 0\n",
        "elrun_steps_total 0\n", "process_cpu_seconds_total 0.5\n", "process_open_fds 7\n", "# TYPE process_cpu_seconds_total counter\n"}) {
    INFO(line);
    CHECK(has(text, line));
  }
  CHECK_FALSE(has(text, "elrun_last_step_timestamp_seconds"));  // no step was decided: there is no such time
}

TEST_CASE("the status can be read by programs and by people", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.end(0, {.exit_code = 3});
  const auto page = page_for({.path = "/statusz"}, node.snapshot());
  CHECK(page.type == "application/json");
  const auto text = status_for_people(page.body);
  REQUIRE(text.ok());
  INFO(*text);
  CHECK(has(*text, "run job on node n (agent 77, elrun 1.2.3): running"));
  CHECK(has(*text, "generation 1: 2 of 1 to 3 nodes, 4 workers"));
  CHECK(has(*text, "coordinator: host:1 (here), connected"));
  CHECK(has(*text, "last failure: rank 2 (local rank 0, pid 100) ended by exit code 3"));
  CHECK(has(*text, "     2      0      100  failed\n"));
  CHECK(has(*text, "     3      1      101  running\n"));
  CHECK(processes_in(page.body) == std::vector<std::int64_t>{77, 100, 101});
  CHECK(has(*text, "  program: train.py\n"));
}

TEST_CASE("a slow rank is shown with node and device, on each node, until its generation is over", "[pages][ledger]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  CHECK_FALSE(has(node.metrics_text(), "elrun_straggler"));
  CHECK_FALSE(nlohmann::json::parse(status_page(node.snapshot()))["time"].contains("stragglers"));
  const SlowRank slow{.rank = 1, .node = "other", .device = "cuda:3", .step = 12, .steps = 10, .times = 5, .lost = 2s};
  for (const ConnectionId worker : {5u, 6u}) node.on(FromWorker{worker, RankIsSlow{generation(1), slow}});  // both say the same
  node.on(FromWorker{5, RankIsSlow{generation(7), slow}});                                                  // of no generation here
  const std::string line = "elrun_straggler{rank=\"1\",node=\"other\",device=\"cuda:3\"} 1\n";
  CHECK(has(node.metrics_text(), line));
  const auto page = nlohmann::json::parse(status_page(node.snapshot()));
  CHECK(page["time"]["stragglers"] == nlohmann::json::parse(R"([{"generation": 1, "rank": 1, "node": "other", "device": "cuda:3",
      "step": 12, "steps": 10, "times": 5.0, "lost_seconds": 2.0}])"));
  CHECK(has(*status_for_people(page.dump()),
            "  straggler: rank 1 (node other, cuda:3) was slow up to step 12 of generation 1: 5.0 times the median, 2.0 s lost\n"));
  SECTION("named anew, it is shown as it was then") {
    SlowRank again = slow;
    again.step = 50;
    node.on(FromWorker{5, RankIsSlow{generation(1), again}});
    node.on(FromWorker{6, RankIsSlow{generation(1), slow}});  // late
    REQUIRE(node.record().ledger.stragglers().size() == 1);
    CHECK(node.record().ledger.stragglers()[0].slow == again);
  }
  SECTION("the status keeps the newest few of earlier generations") {
    for (std::uint32_t rank = 10; rank < 18; ++rank)
      node.on(FromWorker{5, RankIsSlow{generation(1), {.rank = rank, .node = "n", .device = "cpu", .step = rank}}});
    CHECK(node.record().ledger.stragglers().size() == Ledger::stragglers_max);
    CHECK(node.record().ledger.stragglers()[0].slow.rank == 10);
    node.hear(Revoke{generation(1), worker_killed, EndCause::failure});
    CHECK_FALSE(has(node.metrics_text(), "elrun_straggler"));
    CHECK(node.record().ledger.stragglers().size() == Ledger::stragglers_max);
  }
}

TEST_CASE("the status, the metrics and the event log say what time went into", "[pages][ledger]") {
  Node node;
  node.on(LinkUp{});
  node.pass(1s);
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  node.on(FromWorker{6, Hello{.rank = 3, .world = 4, .is_job = true}});
  node.pass(2s);
  const StepTimes spent{.step = 1500ms, .waiting = 250ms, .behind = 500ms, .last_rank = 3};
  node.on(FromWorker{5, StepDecided{generation(1), 10, 90, 2.5f, spent}});
  node.on(FromWorker{6, StepDecided{generation(1), 10, 90, 2.5f, spent}});  // the same step: said already
  node.pass(1s);
  const Ledger& ledger = node.record().ledger;
  const auto of = [&](TimeCause cause) { return ledger.totals()[static_cast<std::size_t>(cause)]; };
  SECTION("of a job that runs") {
    const std::string text = node.metrics_text();
    CHECK(has(text, "# TYPE elrun_time_seconds_total counter\n"));
    CHECK(has(text, "elrun_time_seconds_total{cause=\"rendezvous\"} 1\n"));
    CHECK(has(text, "elrun_time_seconds_total{cause=\"start\"} 0.5\n"));
    CHECK(has(text, "elrun_time_seconds_total{cause=\"steps\"} 2.25\n"));  // with what is not over yet
    CHECK(has(text, "elrun_time_seconds_total{cause=\"waiting\"} 0.25\n"));
    CHECK(has(text, "elrun_time_wall_seconds 4\n"));
    CHECK(has(text, "elrun_incidents_total 0\n"));
    CHECK(has(text, "elrun_last_rank_steps_total{rank=\"2\"} 0\nelrun_last_rank_steps_total{rank=\"3\"} 1\n"));
    CHECK(has(text, "elrun_last_rank_seconds_total{rank=\"2\"} 0\nelrun_last_rank_seconds_total{rank=\"3\"} 0.5\n"));
    const auto last = nlohmann::json::parse(status_page(node.snapshot()))["time"]["last_ranks"];
    CHECK(last == nlohmann::json::parse(R"([{"rank": 3, "steps": 1, "behind_seconds": 0.5}])"));
    CHECK(has(
        *status_for_people(status_page(node.snapshot())),
        "  time: 4.0 s: rendezvous 1.00 s (25.0 %), start 0.50 s (12.5 %), steps 2.25 s (56.2 %), waiting for the slowest rank 0.25 s (6.2 %)\n"
        "  slowest rank: 3 finished last in 1 step, 0.5 s behind the second-to-last\n"));
  }
  SECTION("of one that has recovered, with the points of it") {
    node.end(1, {.signal = SIGKILL});
    node.pass(1s);
    node.hear(Revoke{generation(1), worker_killed, EndCause::failure});
    node.pass(1s);
    node.on(FromWorker{5, GenerationOver{generation(1), {Code::generation_over, Remedy::rejoin, "over"}}});
    node.end(0, {.signal = SIGTERM});
    node.begin(2);
    CHECK(of(TimeCause::again) == 1s);
    CHECK(of(TimeCause::detect) == 1s);
    CHECK(of(TimeCause::stop) == 1s);
    const auto page = nlohmann::json::parse(status_page(node.snapshot()));
    CHECK(page["time"]["incidents"] == 1);
    CHECK(page["time"]["last_incident"]["at_seconds"]["pushed"] == 5.0);
    INFO(*status_for_people(page.dump()));
    CHECK(has(*status_for_people(page.dump()),
              "  1 incident:\n    generation 1 ended: rank 3 ended by signal 9 (SIGKILL)\n"
              "      last_step 3.000 s, seen 4.000 s, pushed 5.000 s, stopped 6.000 s, agreed 6.000 s\n"));
    const auto line = nlohmann::json::parse(event_line({.run = RunId{"job"}, .host = "n"}, ledger, 7'000'000'000));
    CHECK(line["name"] == "elrun.time");
    CHECK(line["metadata"]["by_cause"]["recovery_detect"] == 1.0);
    CHECK(has(node.metrics_text(), "elrun_incidents_total 1\n"));
    CHECK_FALSE(has(node.metrics_text(), "elrun_recovery_phase_seconds"));  // it is not over
    node.pass(2s);
    node.on(FromWorker{7, Hello{.rank = 2, .world = 4, .is_job = true}});
    node.on(FromWorker{7, StepDecided{generation(2), 11, 90, 2.5f, {.step = 500ms, .restore = 250ms, .connect = 125ms}}});
    const std::string text = node.metrics_text();
    for (const std::string phase : {"detect\"} 1", "stop\"} 1", "agree\"} 0", "start\"} 1.125", "connect\"} 0.125", "restore\"} 0.25"}) {
      INFO(phase);
      CHECK(has(text, "elrun_recovery_phase_seconds_sum{phase=\"" + phase + "\n"));
    }
    CHECK(has(text, "elrun_recovery_phase_seconds_count{phase=\"restore\"} 1\n"));
  }
  SECTION("of one with many incidents, the newest three") {
    for (std::uint64_t number = 2; number <= 6; ++number) {
      node.hear(Revoke{generation(number - 1), node_lost, EndCause::loss});
      for (const std::uint32_t worker : {0u, 1u}) node.end(worker, {.signal = SIGTERM});
      node.begin(number);
      const ConnectionId worker = 10 + number;
      node.on(FromWorker{worker, Hello{.rank = 2, .world = 4, .is_job = true}});
      node.on(FromWorker{worker, StepDecided{generation(number), 9 + number, 90, 2.5f, {}}});
    }
    const std::string text = *status_for_people(status_page(node.snapshot()));
    INFO(text);
    CHECK(has(text, "  5 incidents, the newest:\n    generation 3 ended: node m is lost\n"));
    CHECK(has(text, "    generation 5 ended: node m is lost\n"));
    CHECK_FALSE(has(text, "    generation 2 ended"));
  }
  SECTION("of one that ends: its last save is no step") {
    node.on(FromWorker{5, StepDecided{generation(1), 10, 90, 2.5f, {.saves = 750ms}}});
    node.on(FromWorker{5, JobOver{generation(1)}});
    CHECK(of(TimeCause::saves) == 750ms);
    CHECK(of(TimeCause::again) == 0s);
  }
}

TEST_CASE("the status says how long ago the last step was decided, also in the generation after it", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  node.on(FromWorker{5, StepDecided{generation(1), 10}});
  const auto steps = [&] {
    const auto text = status_for_people(status_page(node.snapshot()));
    return text.ok() ? *text : std::string{};
  };
  node.pass(3s);
  CHECK(has(steps(), "steps: 1 decided, the last is 10, 3.0 s ago\n"));
  node.hear(Revoke{generation(1), {Code::peer_lost, Remedy::rejoin, "a node was lost"}});
  node.pass(600s);
  CHECK(has(steps(), "the last is 10, 10 min ago\n"));
}

TEST_CASE("the status says of how many steps the last one is, and its loss", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  node.on(FromWorker{5, StepDecided{generation(1), 10, 90, 2.5f}});
  CHECK(has(*status_for_people(status_page(node.snapshot())), "the last is 10 of 90 with loss 2.5, 0.0 s ago\n"));
  node.hear(Revoke{generation(1), {Code::peer_lost, Remedy::rejoin, "a node was lost"}});
  node.end(0, {.signal = SIGTERM}), node.end(1, {.signal = SIGTERM});
  node.begin(2);
  node.on(FromWorker{6, Hello{.rank = 2, .world = 4, .is_job = true}});
  node.on(FromWorker{6, StepDecided{generation(2), 10}});  // it waits for the storage, and says so
  CHECK(has(*status_for_people(status_page(node.snapshot())), "the last is 10 of 90 with loss 2.5, 0.0 s ago\n"));
  node.on(FromWorker{6, StepDecided{generation(2), 11, 90, std::numeric_limits<float>::quiet_NaN()}});
  CHECK(has(*status_for_people(status_page(node.snapshot())), "the last is 11 of 90, 0.0 s ago\n"));
}

TEST_CASE("the status says from which checkpoint the job went on, and what was passed over", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  const auto said = [&] { return *status_for_people(status_page(node.snapshot())); };
  CHECK_FALSE(has(said(), "went on"));
  node.on(FromWorker{5, WentOnFrom{generation(1), {"", 0, 0, "there is no checkpoint", {}}}});
  CHECK(has(said(), "  went on at: step 0 (there is no checkpoint)\n"));
  node.on(FromWorker{5, WentOnFrom{generation(1), {"/ck/s40", 40, 3, "a newer one is passed over", {"s60 is damaged"}}}});
  node.on(FromWorker{5, WentOnFrom{generation(9), {"/other", 1, 0, "", {}}}});  // of a generation that is not here
  CHECK(has(said(), "  went on at: step 40, from /ck/s40 (a newer one is passed over); 3 steps done again\n    s60 is damaged\n"));
  const auto page = nlohmann::json::parse(status_page(node.snapshot()));
  CHECK(page["checkpoints"]["went_on_from"]["step"] == 40);
  CHECK(page["checkpoints"]["went_on_from"]["notes"] == nlohmann::json{"s60 is damaged"});
  for (const char* odd :
       {R"({"checkpoints":3})", R"({"checkpoints":{"went_on_from":{"notes":[3,{}]}}})", R"({"checkpoints":{"went_on_from":[]}})"})
    CHECK(status_for_people(odd).ok());
}

TEST_CASE("a wait for the storage is shown with directory, cause and time, until it is over", "[pages]") {
  Node node;
  node.on(LinkUp{});
  node.begin(1);
  node.on(FromWorker{5, Hello{.rank = 2, .world = 4, .is_job = true}});
  const auto said = [&] { return *status_for_people(status_page(node.snapshot())); };
  const auto waits = [&](const char* why) { node.on(FromWorker{5, WaitsForStorage{generation(1), {"/ck", why}}}); };
  CHECK_FALSE(has(said(), "waits for the storage"));
  node.on(FromWorker{5, WaitsForStorage{generation(7), {"/ck", "of no generation here"}}});
  CHECK_FALSE(has(said(), "waits for the storage"));
  waits("");
  CHECK(has(said(), "  waits for the storage of checkpoints, /ck, for 0.0 s: no trouble is known here"));
  node.pass(10s);
  waits("rank 2: list /ck/gens has not returned for 10.0 s");
  waits("");  // of another worker, which does not know
  CHECK(has(said(), "  waits for the storage of checkpoints, /ck, for 10.0 s: rank 2: list /ck/gens has not returned for 10.0 s\n"));
  const auto page = nlohmann::json::parse(status_page(node.snapshot()));
  CHECK(page["checkpoints"]["waiting"]["directory"] == "/ck");
  SECTION("the job goes on") { node.on(FromWorker{5, WentOnFrom{generation(1), {"", 0, 0, "there is no checkpoint", {}}}}); }
  SECTION("a checkpoint was saved") { node.on(FromWorker{5, CheckpointSaved{"s40"}}); }
  SECTION("a step was decided") { node.on(FromWorker{5, StepDecided{generation(1), 10}}); }
  CHECK_FALSE(has(said(), "waits for the storage"));
  for (const char* odd : {R"({"checkpoints":{"waiting":3}})", R"({"checkpoints":{"waiting":{"why":4,"seconds":"x"}}})"})
    CHECK(status_for_people(odd).ok());
}

TEST_CASE("the status says who answers, and whether it was asked to leave", "[pages]") {
  Node node;
  node.begin(1);
  const auto before = agent_answer(status_page(node.snapshot()));
  REQUIRE(before);
  CHECK(before->pid == 77);
  CHECK(before->run == "job");
  CHECK(before->phase == "running");
  CHECK_FALSE(before->leaving);
  node.on(SignalCame{SIGTERM});
  CHECK(agent_answer(status_page(node.snapshot()))->leaving);
  CHECK(has(*status_for_people(status_page(node.snapshot())), ", asked to leave by SIGTERM, up for "));
  for (const char* odd : {"", "[]", "{}", R"({"pid":0})", R"({"pid":"7"})"}) CHECK_FALSE(agent_answer(odd));
}

TEST_CASE("the status of several agents is one JSON document", "[pages]") {
  Node node;
  const std::string agent = status_page(node.snapshot());
  const auto document = nlohmann::json::parse(
      status_document(std::vector<std::string>{agent, "no JSON", agent}, std::vector<std::string>{"x did not answer"}));
  REQUIRE(document["agents"].size() == 2);
  CHECK(document["agents"][1] == nlohmann::json::parse(agent));
  CHECK(document["problems"] == nlohmann::json{"x did not answer"});
  CHECK(nlohmann::json::parse(status_document({}, {})) == nlohmann::json{{"agents", nlohmann::json::array()}});
}

TEST_CASE("a status that anybody may have sent does no harm", "[pages]") {
  CHECK_FALSE(status_for_people("").ok());
  CHECK_FALSE(status_for_people("[]").ok());
  CHECK_FALSE(status_for_people(std::string(1'000'000, '[')).ok());
  const auto text = status_for_people(R"({"run":"a\u001b[2Jb\u009b","node":7,"workers":[3,{"rank":"x"}],"restarts":[]})");
  REQUIRE(text.ok());
  CHECK(has(*text, "run a?[2Jb\\xc2\\x9b on node "));
  CHECK(text->find('\x1b') == std::string::npos);
  CHECK(processes_in("{").empty());
}

TEST_CASE("what the record holds in odd bytes is still JSON", "[pages]") {
  Node node;
  node.identity.run = RunId{"\xff\"\n"};
  CHECK(status_for_people(status_page(node.snapshot())).ok());
}

TEST_CASE("each page has its place", "[pages]") {
  const Node node;
  const auto page = [&](std::string path, std::string accept = {}) {
    return page_for({.path = std::move(path), .accept = std::move(accept)}, node.snapshot());
  };
  for (const char* path : {"/livez", "/healthz", "/readyz", "/statusz", "/metrics"}) CHECK(page(path).status == 200);
  CHECK(page("/").status == 404);
  CHECK(page("/metrics").type.starts_with("text/plain; version=0.0.4"));
  CHECK(page("/metrics", "application/openmetrics-text").body.ends_with("# EOF\n"));
}

}  // namespace elrun::test::history
