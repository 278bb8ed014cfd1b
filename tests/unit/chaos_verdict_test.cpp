// What two runs come to, and what their output says.
#include "launcher/chaos/verdict.hpp"

#include <vector>

#include <fmt/format.h>

#include "tests/support/catch.hpp"

namespace elrun::launcher {
namespace {

using Compared = CheckpointsCompared;

RunFacts done_in(Duration wall, const char* state) {
  RunFacts facts{.wall = wall, .step_span = wall - 1s};
  if (state != nullptr) facts.states = {{state, {"rank 0"}}};
  return facts;
}
const std::vector<FaultRecord> one_kill{{.fault = {.at = 5s}, .began = 5s}};

int code_of(const RunFacts& reference, const RunFacts& disturbed, const Compared& checkpoints = {}) {
  return judge(reference, disturbed, one_kill, checkpoints).exit_code;
}

TEST_CASE("the verdict is equal only where the job finished and a state was compared", "[chaos]") {
  const RunFacts same = done_in(11s, "abc");
  const Verdict verdict = judge(done_in(10s, "abc"), same, one_kill, {});
  CHECK(verdict.exit_code == 0);
  CHECK(verdict.words == "the final states are equal: abc");
  CHECK(*verdict.wall_share == Approx(10.0 / 11));
  CHECK(*verdict.step_share == Approx(0.9));
  CHECK(code_of(done_in(10s, nullptr), done_in(11s, nullptr), {Compared::Outcome::equal, "equal"}) == 0);

  CHECK(code_of(done_in(10s, "abc"), done_in(11s, "abd")) == 1);
  CHECK(code_of(done_in(10s, "abc"), done_in(11s, nullptr)) == 3);  // that nothing was said is no difference
  CHECK(code_of(done_in(10s, nullptr), done_in(11s, "abc")) == 3);
  CHECK(code_of(done_in(10s, "abc"), same, {Compared::Outcome::different, "they differ"}) == 1);
  CHECK(code_of(done_in(10s, "abc"), done_in(11s, "abd"), {Compared::Outcome::equal, "equal"}) == 1);

  CHECK(code_of(done_in(10s, nullptr), done_in(11s, nullptr)) == 3);
  CHECK(code_of(done_in(10s, "abc"), same, {Compared::Outcome::impossible, "no root"}) == 3);
  CHECK(judge(done_in(10s, "abc"), same, {}, {}).exit_code == 3);
  const std::vector<FaultRecord> too_late{{.fault = {.at = 500s}}};
  CHECK(judge(done_in(10s, "abc"), same, too_late, {}).exit_code == 3);
  CHECK(
      judge(done_in(10s, "abc"), same, too_late, {}).words ==
      "nothing was rehearsed: the job ended before the first failure; take a longer job, or let failures come earlier (--mtbf, or the plan)");
  const std::vector<FaultRecord> by_step{{.fault = {.step = 5}}};
  CHECK(
      judge(done_in(10s, "abc"), same, by_step, {}).words ==
      "nothing was rehearsed: the program's output has no line with a step, so no failure that waits for one was made; --step-from TEXT names "
      "what stands before the number");
  RunFacts with_steps = same;
  with_steps.step_lines = 4;
  CHECK(judge(done_in(10s, "abc"), with_steps, by_step, {}).words.find("the job ended before the first failure") != std::string::npos);
}

TEST_CASE("ranks that end in different states are never equal, and are named", "[chaos]") {
  const RunFacts same = done_in(10s, "a");
  RunFacts split = same;
  split.states = {{"a", {"rank 0", "rank 2"}}, {"b", {"rank 1"}}};
  const Verdict verdict = judge(same, split, one_kill, {});
  CHECK(verdict.exit_code == 1);
  CHECK(verdict.words == "the final states differ: undisturbed a, disturbed a (rank 0 and rank 2), b (rank 1)");
  CHECK(code_of(same, split, {Compared::Outcome::equal, "equal"}) == 1);
  for (const RunFacts& disturbed : {same, split, done_in(10s, nullptr)}) {
    const Verdict nothing = judge(split, disturbed, one_kill, {Compared::Outcome::equal, "equal"});
    CHECK(nothing.exit_code == 3);
    CHECK(nothing.words.starts_with("the undisturbed run has no single final state: a (rank 0 and rank 2), b (rank 1). Let all ranks say"));
  }
  CHECK(code_of(split, same, {Compared::Outcome::different, "they differ"}) == 1);
  const auto json = report_json({.reference = same, .disturbed = split});
  CHECK(json["undisturbed"]["state"] == "a");
  CHECK(json["disturbed"]["state"].is_null());
  CHECK(json["disturbed"]["states"][1]["said_by"][0] == "rank 1");
  ReportedState many{"c"};
  for (int i = 0; i < 10; ++i) many.who.push_back(fmt::format("rank {}", i));
  CHECK(in_words({many, {"d", {"node 3"}}}).find("and rank 7 and 2 more), d (node 3)") != std::string::npos);
}

TEST_CASE("a state that only killed workers said may be equal, and is not called different", "[chaos]") {
  RunFacts killed = done_in(11s, "abc");
  killed.states_of_killed = true;
  CHECK(code_of(done_in(10s, "abc"), killed) == 0);
  CHECK(code_of(done_in(10s, "abd"), killed) == 3);
  CHECK(code_of(done_in(10s, "abd"), killed, {Compared::Outcome::equal, "equal"}) == 3);
  CHECK(code_of(done_in(10s, "abd"), killed, {Compared::Outcome::different, "they differ"}) == 1);
}

TEST_CASE("a node that fails fails the run, whatever becomes of the others", "[chaos]") {
  using Ends = std::vector<NodeEnd>;
  const auto failed = [](const Ends& ends) {
    std::vector<std::uint32_t> nodes;
    for (const NodeEnd& end : nodes_that_failed(ends)) nodes.push_back(end.node);
    return nodes;
  };
  using Nodes = std::vector<std::uint32_t>;
  CHECK(failed({{0, 0, 5s}, {1, 0, 6s}}).empty());
  CHECK(failed({{0, 0, 5s}, {1, 7, 4s}}) == Nodes{1});
  CHECK(failed({{0, 0, 5s}, {1, 139, 6s}}) == Nodes{1});
  CHECK(failed({{0, 9, 8s}, {1, 7, 4s}, {2, 0, 5s}}) == Nodes{1, 0});  // the first one first
  SECTION("but for one that the plan took away, and that came back to a job that was over") {
    CHECK(failed({{0, 0, 5s}, {1, 171, 6s, true}}).empty());
    CHECK(failed({{0, 0, 5s}, {1, 7, 4s, true}}) == Nodes{1});  // it was not over
    CHECK(failed({{0, 7, 5s}, {1, 7, 6s, true}}) == Nodes{0, 1});
  }
  RunFacts one_failed = done_in(10s, "a");
  one_failed.exit_code = 7, one_failed.some_node_succeeded = true, one_failed.failed = {{1, 7, 4s}};
  const Verdict verdict = judge(done_in(10s, "a"), one_failed, one_kill, {});
  CHECK(verdict.exit_code == 2);
  CHECK(verdict.words == "the disturbed job did not finish: node 1 ended with exit code 7, though another node succeeded");
  CHECK(judge(one_failed, {}, {}, {}).words.find("(node 1 ended with exit code 7, though another node succeeded)") != std::string::npos);
  CHECK(report_json({.reference = one_failed})["undisturbed"]["failed_nodes"][0]["node"] == 1);
}

TEST_CASE("of a node of its own the verdict says what can be known there", "[chaos]") {
  const std::vector<FaultRecord> of_others{{.fault = {.at = 5s}, .of_others = true, .came = true}};
  const auto judged = [&](const char* undisturbed, const char* disturbed, std::uint32_t node, const Compared& checkpoints = {}) {
    return judge(done_in(10s, undisturbed), done_in(11s, disturbed), of_others, checkpoints, node);
  };
  const Compared equal{Compared::Outcome::equal, "the checkpoints are equal"}, different{Compared::Outcome::different, "they differ"};
  SECTION("a state is compared as anywhere") {
    CHECK(judged("a", "a", 1).exit_code == 0);
    CHECK(judged("a", "b", 1).exit_code == 1);
    CHECK(judged("a", "a", 1, different).exit_code == 1);
  }
  SECTION("workers may say none, but not those of node 0") {
    CHECK(judged(nullptr, nullptr, 1).exit_code == 0);
    CHECK(judged(nullptr, nullptr, 1).words.find("the node whose workers say one has the verdict") != std::string::npos);
    CHECK(judged(nullptr, nullptr, 0).exit_code == 3);
    CHECK(judged(nullptr, nullptr, 0, equal).exit_code == 0);
    CHECK(judged(nullptr, nullptr, 1, different).exit_code == 1);
  }
  SECTION("a state that was said in one run only needs checkpoints beside it") {
    CHECK(judged("a", nullptr, 0).exit_code == 3);
    CHECK(judged(nullptr, "a", 1).exit_code == 3);
    CHECK(judged(nullptr, "a", 1).words.find("in the disturbed run only") != std::string::npos);
    CHECK(judged("a", nullptr, 0, equal).exit_code == 0);
  }
  SECTION("a node that was away when it failed leaves the verdict to the others, unless the checkpoints are equal") {
    RunFacts failed = done_in(11s, nullptr);
    failed.exit_code = 170;
    const auto code = [&](const Compared& checkpoints) { return judge(done_in(10s, "a"), failed, one_kill, checkpoints, 1).exit_code; };
    CHECK(code(equal) == 2);
    failed.was_away = true;
    CHECK(code({}) == 3);
    CHECK(code(different) == 3);
    CHECK(code(equal) == 0);
    CHECK(judge(done_in(10s, "a"), failed, one_kill, {}, 1).words.find("The other nodes have the verdict") != std::string::npos);
  }
  SECTION("the speed of steps is told where this node's workers printed the last one in both runs") {
    RunFacts undisturbed = done_in(10s, "a"), disturbed = done_in(5s, "a");
    undisturbed.step = 600, disturbed.step = 109;
    CHECK_FALSE(judge(undisturbed, disturbed, of_others, {}, 0).step_share);
    CHECK(judge(undisturbed, disturbed, of_others, {}).step_share);
    disturbed.step = 600;
    CHECK(judge(undisturbed, disturbed, of_others, {}, 0).step_share);
  }
  SECTION("nothing was rehearsed where no failure came, here or elsewhere") {
    const std::vector<FaultRecord> late{{.fault = {.at = 5s}, .of_others = true}};
    CHECK(judge(done_in(10s, "a"), done_in(10s, "a"), late, {}, 1).exit_code == 3);
  }
  SECTION("the loss of the coordinator that was left to others may have been made by nobody") {
    std::vector<FaultRecord> left{{.fault = {.kind = FaultKind::coordinator, .at = 5s}, .of_others = true, .came = true}};
    CHECK(judge(done_in(10s, "a"), done_in(10s, "a"), left, {}, 1).exit_code == 3);
    CHECK(judge(done_in(10s, "a"), done_in(10s, "a"), left, {}, 1).words.find("left the loss of the coordinator") != std::string::npos);
    left.push_back(of_others.front());
    CHECK(judge(done_in(10s, "a"), done_in(10s, "a"), left, {}, 1).exit_code == 0);
  }
  ChaosReport report{.own_node = 1, .reference = done_in(10s, "a"), .disturbed = done_in(11s, "a"), .records = of_others};
  report.records.push_back({.fault = {.at = 6s, .target = 2}, .began = 6s});
  CHECK(report_text(report).find("and 1 failure of other nodes: their reports have them") != std::string::npos);
  CHECK(report_text(report).find("kill") != std::string::npos);
  CHECK(report_json(report)["own_node"] == 1);
  CHECK(report_json(report)["faults"][0]["of_other_node"] == true);
  CHECK(report_json(report)["faults"][1]["of_other_node"] == false);
}

TEST_CASE("processes that have not ended are named", "[chaos]") {
  CHECK(words_of_remaining({}, 5s).empty());
  CHECK(words_of_remaining(std::vector{12}, 5s).starts_with("process 12 has not ended within 5.0 s of SIGKILL: the kernel holds them"));
  CHECK(words_of_remaining(std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5s).find("process 8 and 2 more have not ended") !=
        std::string::npos);
}

TEST_CASE("a run that failed is judged before its state", "[chaos]") {
  RunFacts failed = done_in(11s, "abc");
  failed.exit_code = 137;
  CHECK(code_of(done_in(10s, "abc"), failed) == 2);
  CHECK(code_of(failed, done_in(10s, "abc")) == 3);
  CHECK(judge(failed, {}, {}, {}).exit_code == 3);
  ChaosReport report{.reference = failed, .verdict = judge(failed, {}, {}, {})};
  CHECK(report_text(report).find("speed beside") == std::string::npos);
  CHECK(report_json(report)["disturbed"].is_null());
  RunFacts late = done_in(11s, "abc");
  late.in_time = false;
  CHECK(code_of(done_in(10s, "abc"), late) == 2);
  RunFacts unfit = done_in(10s, "abc");
  unfit.unfit = "it has two workers";
  CHECK(code_of(done_in(10s, "abc"), unfit) == 3);
  CHECK(judge(unfit, {}, {}, {}).words == "nothing can be said: it has two workers");
}

TEST_CASE("steps are counted, and those that were said before are told apart", "[chaos]") {
  StepTimeline steps{"step=", {}};
  const auto say = [&](const char* line, Duration at) { steps.saw(line, 0, at); };
  say("step=1 loss=2", 1s);
  say("no step here", 1100ms);
  say("step=x", 1200ms);
  say("max_step=1000", 1300ms);
  say("step=2 loss=2", 2s);
  say("step=3", 3s);
  say("step=2", 6s);  // gone back to a checkpoint
  say("step=3", 7s);
  say("step=4", 8s);
  steps.saw("done step=4 state=abc", 0, 9s, true);  // no step
  CHECK(steps.highest() == 4);
  CHECK(steps.lines() == 6);
  CHECK(steps.again() == 2);
  CHECK(steps.span() == 7s);
  CHECK(steps.median_gap() == 1s);
  SECTION("a pause is the longest time without one, from a fault to the next") {
    CHECK(steps.pause(3500ms, 7s) == 2500ms);     // what had passed before the fault is not its
    CHECK(steps.pause(1500ms, 2300ms) == 500ms);  // nor is what follows the next one
    CHECK(steps.pause(500ms, 2500ms) == 1s);      // before the first line it had not begun
    CHECK(steps.pause(0s, Duration::max()) == 3s);
    CHECK(steps.pause(8s, Duration::max()) == std::nullopt);
  }
  SECTION("without a mark there are none") {
    StepTimeline none{"", {}};
    none.saw("step=1", 0, 1s);
    CHECK(none.lines() == 0);
    CHECK_FALSE(none.pause(0s, 10s));
  }
}

TEST_CASE("where all ranks say each step, it counts once, until they go back", "[chaos]") {
  StepTimeline steps{"step=", {.of_node = 2, .of_all = 4}};
  const auto say = [&](std::uint32_t node, int step, Duration at) { steps.saw(fmt::format("step={}", step), node, at); };
  for (int step = 1; step <= 3; ++step)  // two ranks of each of two nodes; those of node 1 are a step behind
    for (const auto& [node, behind] : {std::pair{0u, 0}, {0u, 0}, {1u, 1}, {1u, 1}})
      if (step > behind) say(node, step - behind, step * 1s);
  CHECK(steps.highest() == 3);
  CHECK(steps.lines() == 3);
  CHECK(steps.again() == 0);
  CHECK(steps.median_gap() == 1s);
  CHECK((steps.voices_heard().of_node == 2 && steps.voices_heard().of_all == 4));
  for (int step = 2; step <= 4; ++step)  // back to step 2
    for (const std::uint32_t node : {0u, 0u, 1u, 1u}) say(node, step, step * 1s + 4s);
  CHECK(steps.highest() == 4);
  CHECK(steps.lines() == 6);
  CHECK(steps.again() == 2);
  CHECK(steps.pause(3s, Duration::max()) == 3s);
  SECTION("also a long way") {
    StepTimeline long_job{"step=", {.of_node = 2, .of_all = 2}};
    for (int step = 1; step <= 10'000; ++step) long_job.saw(fmt::format("step={}", step), 0, 1s * step);
    for (int step = 5; step <= 10'001; ++step) long_job.saw(fmt::format("step={}", step), 0, 1s * (10'000 + step));
    CHECK(long_job.again() == 9'996);
    CHECK(long_job.lines() == 10'000 + 9'997);
  }
}

TEST_CASE("steps are done again also where another node says them", "[chaos]") {
  StepTimeline steps{"step=", {}};
  for (int step = 1; step <= 100; ++step) steps.saw(fmt::format("step={}", step), 0, step * 1s);
  for (int step = 51; step <= 120; ++step) steps.saw(fmt::format("step={}", step), 1, step * 1s + 100s);  // rank 0 is there now
  CHECK(steps.again() == 50);
  CHECK(steps.lines() == 170);
  CHECK(steps.pause(100s, Duration::max()) == 51s);
}

TEST_CASE("a part of a run's time is said to be a part", "[chaos]") {
  ChaosReport report{.reference = done_in(10s, "abc"), .disturbed = done_in(20s, "abc")};
  report.reference.times = ReportedTimes{.wall_seconds = 9.9, .by_cause = {{"steps", 9.9}}};
  report.disturbed->times = ReportedTimes{.node = 1, .wall_seconds = 15.56, .by_cause = {{"steps", 15.56}}};
  const std::string text = report_text(report);
  CHECK(text.find("all of it") != std::string::npos);
  CHECK(
      text.find("of the disturbed run's 20.00 s that is the account of node 1, which has 15.56 s: no agent lived through all of the run") !=
      std::string::npos);
  CHECK(text.find("of the undisturbed run's") == std::string::npos);
}

TEST_CASE("the times of a run are those of the agent with the longest account of it", "[chaos]") {
  const std::vector<std::string> logs{
      "{\"name\": \"other\"}\nnot json elrun.time\n{\"name\":\"elrun.time\",\"metadata\":{\"wall_seconds\":3.0,\"by_cause\":{\"steps\":3.0},\"incidents\":0}}\n",
      "{\"name\":\"elrun.time\",\"metadata\":{\"wall_seconds\":9.5,\"by_cause\":{\"steps\":8.0,\"saves\":0.0,\"steps_again\":1.5},\"incidents\":2,\"newest_incidents\":[{\"generation\":1}]}}\n"
      "{\"name\":\"elrun.time\",\"metadata\":{\"wall_seconds\":\"x\",\"by_cause\":{}}}\n{\"name\":\"elrun.time\",\"metadata\":7}\n{\"name\":\"elrun.time\"}"};
  const auto said = reported_times(logs);
  REQUIRE(said);
  CHECK(said->wall_seconds == Approx(9.5));
  CHECK(said->node == 1);
  CHECK(said->by_cause == std::vector<std::pair<std::string, double>>{{"steps", 8.0}, {"steps_again", 1.5}});
  CHECK(said->incidents == 2);
  CHECK(said->newest_incidents.size() == 1);
  CHECK_FALSE(reported_times(std::vector<std::string>{"", "no events"}));
}

TEST_CASE("the report says when steps took another time between failures, too", "[chaos]") {
  ChaosReport report{.reference = done_in(10s, "abc"), .disturbed = done_in(12s, "abc")};
  report.verdict = judge(report.reference, report.disturbed, one_kill, {});
  const auto says = [&](std::optional<Duration> undisturbed, std::optional<Duration> disturbed, const char* what) {
    report.reference.step_gap = undisturbed, report.disturbed->step_gap = disturbed;
    return report_text(report).find(what) != std::string::npos;
  };
  constexpr const char* any = "the median step took";
  CHECK(says(50ms, 60ms, "the median step took 60 ms, 20 % longer than undisturbed"));
  CHECK(says(50ms, 40ms, "the median step took 40 ms, 20 % shorter than undisturbed"));
  CHECK_FALSE(says(50ms, 52ms, any));
  CHECK_FALSE(says(std::nullopt, 60ms, any));
  CHECK_FALSE(says(50ms, std::nullopt, any));
  CHECK_FALSE(says(0ms, 60ms, any));
}

TEST_CASE("a plan for programs says of each failure when, what and for how long", "[chaos]") {
  const std::vector<Fault> plan{{.at = 5s, .target = 3},
                                {.kind = FaultKind::slow, .step = 40, .target = 1, .lasts = 1500ms, .percent = 25},
                                {.kind = FaultKind::kill_agent, .at = 7s, .target = 1, .lasts = 2s},
                                {.kind = FaultKind::coordinator, .at = 8s, .lasts = 1s}};
  const std::vector<std::string> left_out{"cut: no"};
  const auto json = plan_json("2 nodes of 2 workers under elrun", plan, left_out);
  CHECK(json["job"] == "2 nodes of 2 workers under elrun");
  CHECK(json["left_out"] == left_out);
  REQUIRE(json["faults"].size() == 4);
  CHECK(json["faults"][0] == nlohmann::json{{"fault", "5s kill rank 3"},
                                            {"kind", "kill"},
                                            {"at_seconds", 5.0},
                                            {"at_step", nullptr},
                                            {"rank", 3},
                                            {"node", nullptr},
                                            {"lasts_seconds", nullptr},
                                            {"percent", nullptr}});
  CHECK(json["faults"][1]["at_seconds"].is_null());
  CHECK(json["faults"][1]["at_step"] == 40);
  CHECK(json["faults"][1]["lasts_seconds"] == 1.5);
  CHECK(json["faults"][1]["percent"] == 25);
  CHECK(json["faults"][2]["node"] == 1);
  CHECK((json["faults"][3]["rank"].is_null() && json["faults"][3]["node"].is_null()));
}

TEST_CASE("how long recoveries took is read from the incidents that have both ends", "[chaos]") {
  ReportedTimes said;
  said.newest_incidents = nlohmann::json::parse(
      R"([{"at_seconds":{"seen":2.0,"first_step":2.5}},{"at_seconds":{"seen":1.0,"first_step":1.25}},{"at_seconds":{"seen":1.0}},)"
      R"({"at_seconds":{"seen":"x","first_step":2}},{"at_seconds":{"seen":3.0,"first_step":2.0}},{"at_seconds":{"seen":0,"first_step":1e300}},{"at_seconds":7},{},7,null])");
  CHECK(recovery_times(said) == std::vector<Duration>{250ms, 500ms});
}

TEST_CASE("the report says what was planned, what was made, and what it cost", "[chaos]") {
  ChaosReport report{.work = "/w", .job = "1 node of 2 workers under elrun", .left_out = {"cut: the job has one node only"}};
  report.reference = done_in(10s, "abc");
  report.disturbed = done_in(20s, "abc");
  report.disturbed->times = ReportedTimes{.wall_seconds = 20, .by_cause = {{"steps", 15.0}, {"steps_again", 5.0}}, .incidents = 1};
  report.records = {{.fault = {.at = 5s}, .began = 5s, .pause = 250ms, .words = "process 7"}, {.fault = {.at = 50s}}};
  report.verdict = judge(report.reference, report.disturbed, report.records, {});
  const std::string text = report_text(report);
  for (const char* part :
       {"1 node of 2 workers under elrun", "/w", "steps again", "5.00 s", "kill", "250 ms", "50.0 %", "the final states are equal: abc"}) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
  const auto json = report_json(report);
  CHECK(json["exit_code"] == 0);
  CHECK(json["share_of_wall_time"] == Approx(0.5));
  CHECK(json["faults"][0]["fault"] == "5s kill rank 0");
  CHECK(json["faults"][0]["pause_seconds"] == Approx(0.25));
  CHECK(json["faults"][1]["began_seconds"].is_null());
  CHECK(json["disturbed"]["time"]["by_cause"]["steps_again"] == Approx(5.0));
  CHECK(json["undisturbed"]["time"].is_null());
  CHECK(json["left_out"].size() == 1);
}

}  // namespace
}  // namespace elrun::launcher
