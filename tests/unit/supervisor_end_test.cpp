// How a node ends: by a signal, by the end of the job, or left behind by it.
#include "tests/unit/supervisor_node.hpp"

namespace elrun::test {

TEST_CASE("a node to which no coordinator comes ends as the last one had decided, though that is on record nowhere", "[supervisor]") {
  Node node;
  node.start();
  Verdict decided{.generation = generation(1)};
  const auto is_left_alone = [&] {
    node.hear(Waiting{.why = "the next decision cannot be written to etcd yet", .decided = decided});
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "reset"}});
    CHECK(node.wait(600s - 1ns).empty());
    return node.wait(1ns);
  };
  SECTION("with 0, where its own workers have ended with that") {
    node.ended(0), node.ended(1);
    CHECK(is_left_alone().back() == "finish 0");
    CHECK(node.report.empty());
  }
  SECTION("without one, where a worker of its own lives") {
    node.ended(0);
    CHECK(is_left_alone() == Words{"signal 0 9", "signal 1 15"});
    CHECK(node.ended(1, {.signal = SIGTERM}).back() == "finish 171");
  }
  SECTION("with the root cause") {
    decided = {3, "worker 1 ended by exit code 3", {}, generation(1)};
    node.hear(Revoke{generation(1), revoked});
    node.ended(0), node.ended(1);
    CHECK(is_left_alone().back() == "finish 3");
    CHECK(node.report == "worker 1 ended by exit code 3");
  }
  SECTION("but by what was decided in its own generation alone") {
    SECTION("not in an earlier one") {
      node.hear(Waiting{.why = "the next decision cannot be written to etcd yet", .decided = decided});
      node.hear(Revoke{generation(1), revoked});
      node.ended(0), node.ended(1);
      node.hear(world(2, 2));
    }
    SECTION("not in another one") {}
    decided.generation = generation(7);
    node.ended(0), node.ended(1);
    CHECK(is_left_alone().back() == "finish 171");
  }
}

TEST_CASE("a node that was asked to end says at last what became of its workers", "[supervisor]") {
  Node node;
  SECTION("they ended") {
    node.start();
    node.on(SignalCame{SIGTERM});
    node.ended(0, {.exit_code = 5});
    CHECK(node.ended(1, {.signal = SIGTERM}).back() == "finish 143");
    CHECK(node.after_signal == "SIGTERM: this node has left; 2 workers ended");
  }
  SECTION("one had to be killed") {
    node.start();
    node.on(SignalCame{SIGINT});
    node.ended(0, {.signal = SIGINT});
    node.wait(31s);
    CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 130");
    CHECK(node.after_signal == "SIGINT: this node has left; 1 worker ended, 1 worker killed");
  }
  SECTION("there was none") {
    CHECK(node.on(SignalCame{SIGHUP}).back() == "finish 129");
    CHECK(node.after_signal == "SIGHUP: this node has left; no worker of it was running");
  }
  SECTION("not after a failure") {
    node.start();
    node.ended(0, {.exit_code = 3});
    node.hear(Verdict{3, "rank 0", {}});
    CHECK(node.ended(1, {.signal = SIGTERM}).back() == "finish 3");
    CHECK(node.after_signal.empty());
  }
}

TEST_CASE("signals are forwarded, the grace is kept, and the exit code is 128 + n", "[supervisor]") {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    Node node;
    node.start();
    CHECK(node.on(SignalCame{number}) == Words{"leave", fmt::format("signal 0 {}", number), fmt::format("signal 1 {}", number)});
    CHECK(node.ended(0, {.exit_code = 85}) == Words{"signal 0 9"});  // not a failure
    CHECK(node.ended(1).back() == fmt::format("finish {}", 128 + number));
  }
  SECTION("a second one kills") {
    Node node;
    node.start();
    node.on(SignalCame{SIGTERM});
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"signal 0 9", "signal 1 9"});
  }
  SECTION("without workers the node leaves at once") {
    Node node;
    CHECK(node.on(SignalCame{SIGINT}) == Words{"leave", "finish 130"});
  }
  SECTION("while workers are being stopped for a restart it ends the job") {
    Node node;
    node.start();
    node.hear(Revoke{generation(1), revoked});
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leave", "signal 0 15", "signal 1 15"});
    node.ended(0);
    CHECK(node.ended(1).back() == "finish 143");
  }
}

TEST_CASE("a worker that SIGKILL does not end holds up no end of its node", "[supervisor]") {
  Node node;
  node.start();
  SECTION("by a signal") {
    node.on(SignalCame{SIGTERM});
    node.ended(0);
    CHECK(node.wait(30s) == Words{"signal 1 9"});
    CHECK(node.wait(10s - 1ns).empty());
    CHECK(node.wait(1ns) == Words{"give up 1"});
    CHECK(node.said == "rank 1 (node n, pid 101): SIGKILL has not ended it within 10.0 s: it is stuck in the kernel\n");
    CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 143");
  }
  SECTION("by a signal that comes twice") {
    node.on(SignalCame{SIGTERM});
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"signal 0 9", "signal 1 9"});
    node.ended(0);
    CHECK(node.wait(10s) == Words{"give up 1"});
  }
  SECTION("by a verdict, of which a Job's workers are killed at once") {
    Node job;
    job.start(1, 2, true);
    job.hear(Verdict{1, "no restarts are left"});
    job.ended(0);
    CHECK(job.wait(10s) == Words{"give up 1"});
  }
  SECTION("by a signal that comes when its generation is over already") {
    node.hear(Revoke{generation(1), revoked});
    node.ended(0);
    node.wait(30s), node.wait(100s);
    node.on(SignalCame{SIGTERM});
    CHECK(node.wait(10s) == Words{"give up 1"});
    CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 143");
  }
}

TEST_CASE("a node that is asked to leave lets its Job save what would be lost", "[supervisor]") {
  Node node;
  node.start(1, 2, true);
  REQUIRE(node.on(SignalCame{SIGTERM}) == Words{"prepare 10", "prepare 11"});
  CHECK(node.tell(10, PrepareToLeave{generation(1)}).empty());
  SECTION("and leaves when all have") {
    node.wait(10s);
    CHECK(node.tell(11, PrepareToLeave{generation(1)}) == Words{"leave", "signal 0 15", "signal 1 15"});
    CHECK(node.said.find("SIGKILL after 20") != node.said.npos);  // the grace began with the signal to this node
    node.ended(0, {.signal = SIGTERM});
    CHECK(node.ended(1, {.signal = SIGTERM}).back() == "finish 143");
  }
  SECTION("a worker that has ended has nothing to save") {
    node.ended(1);
    CHECK(node.tell(10, PrepareToLeave{generation(1)}) == Words{"leave", "signal 0 15", "signal 1 9"});
  }
  SECTION("but in time: the signal comes 5 s before the end of the grace, which began when it was asked") {
    CHECK(node.wait(24s).empty());
    CHECK(node.wait(1s) == Words{"leave", "signal 0 15", "signal 1 15"});
    CHECK(node.wait(4s).empty());
    CHECK(node.wait(1s) == Words{"signal 0 9", "signal 1 9"});
  }
  SECTION("the end of the generation ends the wait") {
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"leave", "signal 0 15", "signal 1 15"});
    node.ended(0, {.signal = SIGTERM});
    CHECK(node.ended(1, {.signal = SIGTERM}).back() == "finish 143");
  }
  SECTION("a second signal kills at once") {
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leave", "signal 0 15", "signal 1 15", "signal 0 9", "signal 1 9"});
  }
  SECTION("the end of the job is its end, also while its workers still do work of their own") {
    node.tell(10, JobOver{generation(1)});
    node.hear(Verdict{});
    CHECK(node.wait(25s).empty());
    CHECK(node.said.empty());
    REQUIRE(node.wake_at());
    CHECK(*node.wake_at() > node.now);
  }
  SECTION("the end of the job is its end") {
    node.tell(10, JobOver{generation(1)});
    node.ended(0);
    node.ended(1);
    CHECK(node.hear(Verdict{}).back() == "finish 0");
  }
}

TEST_CASE("a preempt notice does what SIGTERM does, and the SIGTERM that follows it kills nobody", "[supervisor]") {
  Node node;
  SECTION("a Job saves first") {
    node.start(1, 2, true);
    REQUIRE(node.on(NoticeCame{"the file /x: it is there"}) == Words{"prepare 10", "prepare 11"});
    CHECK(node.said.find("preempt notice (the file /x: it is there): this node leaves as soon as") != node.said.npos);
    CHECK(node.on(SignalCame{SIGTERM}).empty());
    CHECK(node.on(NoticeCame{"again"}).empty());
    CHECK(node.tell(10, PrepareToLeave{generation(1)}).empty());
    CHECK(node.tell(11, PrepareToLeave{generation(1)}) == Words{"leave", "signal 0 15", "signal 1 15"});
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"signal 0 9", "signal 1 9"});
    node.ended(0, {.signal = SIGKILL});
    CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 143");
    CHECK(node.after_signal == "preempt notice (the file /x: it is there): this node has left; 2 workers killed");
  }
  SECTION("other workers get the signal") {
    node.start();
    CHECK(node.on(NoticeCame{"x"}) == Words{"leave", "signal 0 15", "signal 1 15"});
    CHECK(node.on(SignalCame{SIGTERM}).empty());
    node.ended(0, {.signal = SIGTERM});
    CHECK(node.ended(1, {.signal = SIGTERM}).back() == "finish 143");
  }
  SECTION("without workers the node leaves at once") { CHECK(node.on(NoticeCame{"x"}) == Words{"leave", "finish 143"}); }
  SECTION("after a signal it changes nothing") {
    node.start(1, 2, true);
    REQUIRE(node.on(SignalCame{SIGINT}) == Words{"prepare 10", "prepare 11"});
    CHECK(node.on(NoticeCame{"x"}).empty());
  }
  SECTION("a job that is over ends with 0") {
    node.start(1, 2, true);
    node.tell(10, JobOver{generation(1)});
    node.on(NoticeCame{"x"});
    node.ended(0);
    CHECK(node.ended(1).back() == "finish 0");
  }
}

TEST_CASE("a worker that dies after the job was over is told of and counts for nothing, unless elrun has ended it", "[supervisor]") {
  Node node;
  node.start(1, 2, true);
  node.tell(10, JobOver{generation(1)});  // rank 1 has not said it yet
  const bool has_verdict = GENERATE(false, true);
  if (has_verdict) node.hear(Verdict{});
  SECTION("it was killed") {
    node.ended(0, {.signal = SIGKILL});
    CHECK(node.said.find("ended by signal 9 (SIGKILL) after the job was over; it does not count") != node.said.npos);
    CHECK(node.ended(1).back() == (has_verdict ? "finish 0" : "done"));
  }
  SECTION("it crashed before it could say that it knows") {
    node.ended(1, {.signal = SIGSEGV});
    CHECK(node.said.find("ended by signal 11 (SIGSEGV) after the job was over; it does not count") != node.said.npos);
    CHECK(node.ended(0).back() == (has_verdict ? "finish 0" : "done"));
  }
  SECTION("elrun ended it, for the node was asked to leave") {
    node.on(SignalCame{SIGTERM});
    node.ended(0, {.signal = SIGTERM});
    CHECK(node.said.find("after the job was over") == node.said.npos);
    CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 143");
    CHECK(node.said.find("after the job was over") == node.said.npos);
  }
}

TEST_CASE("a node that is asked to leave during its workers' last work ends with 0 only if they came to its end", "[supervisor]") {
  Node node;
  node.start(1, 2, true);
  node.tell(10, JobOver{generation(1)});
  node.tell(11, JobOver{generation(1)});
  if (GENERATE(false, true)) node.hear(Verdict{});
  const auto is_told = [&](const std::string& who, const std::string& how) {
    return node.said.find(who + " (node ") != node.said.npos &&
           node.said.find(" ended by " + how + " in its last work, because of ") != node.said.npos;
  };
  SECTION("they did") {
    node.on(SignalCame{SIGTERM});
    node.ended(0);
    CHECK(node.ended(1).back() == "finish 0");
    CHECK_FALSE(is_told("rank 1", "exit code 0"));
  }
  SECTION("one was cut short") {
    node.ended(0);
    CHECK(node.on(SignalCame{SIGINT}).back() == "signal 1 2");
    CHECK(node.ended(1, {.signal = SIGINT}).back() == "finish 130");
    CHECK(is_told("rank 1", "signal 2 (SIGINT)"));
    CHECK(node.after_signal == "SIGINT: the job was done; 2 workers ended");
  }
  SECTION("one was killed, by a second signal or when the grace was over") {
    node.on(SignalCame{SIGTERM});
    if (GENERATE(false, true)) node.on(SignalCame{SIGTERM});
    else node.wait(30s);
    node.ended(0, {.signal = SIGKILL});
    CHECK(is_told("rank 0", "signal 9 (SIGKILL)"));
    CHECK(node.ended(1).back() == "finish 143");
    CHECK(node.after_signal == "SIGTERM: the job was done; 1 worker ended, 1 worker killed");
  }
  SECTION("the notice of a preemption is such a question, too") {
    node.on(NoticeCame{"x"});
    node.ended(0, {.exit_code = 1});
    CHECK(node.ended(1).back() == "finish 143");
    CHECK(node.after_signal == "preempt notice (x): the job was done; 2 workers ended");
  }
  SECTION("one that had crashed before by itself does not count") {
    node.ended(0, {.signal = SIGSEGV});
    node.on(SignalCame{SIGTERM});
    CHECK(node.ended(1).back() == "finish 0");
  }
}

TEST_CASE("one of several nodes ends with 0 although its workers' last work was cut short, for a node in its place would find no other",
          "[supervisor]") {
  Node node{1};
  node.on(LinkUp{});
  node.hear(world(1, 1, 2));
  node.on(WorkerStarted{LocalRank{0}, 100});
  node.tell(10, Hello{.rank = 1, .world = 2, .is_job = true});
  node.tell(10, JobOver{generation(1)});
  node.hear(Verdict{});
  node.on(SignalCame{SIGTERM});
  CHECK(node.ended(0, {.signal = SIGTERM}).back() == "finish 0");
  CHECK(node.said.find("start the whole job again to do it") != node.said.npos);
}

TEST_CASE("once the workers decided that the job is over, nothing that dies changes the verdict", "[supervisor]") {
  Node node;
  node.start(1, 2, true);
  CHECK(node.tell(10, JobOver{generation(1)}) == Words{"job finished", "over 10"});
  CHECK(node.tell(11, JobOver{generation(1)}) == Words{"over 11"});
  SECTION("told while the generation is being stopped it counts as well") {
    Node late;
    late.start(1, 2, true);
    late.hear(Revoke{generation(1), revoked});
    CHECK(late.tell(10, JobOver{generation(1)}) == Words{"job finished", "over 10"});
  }
  SECTION("a late death is no failure") {
    CHECK(node.ended(0, {.signal = SIGKILL}).empty());
    CHECK(node.ended(1) == Words{"done"});
    CHECK(node.hear(Verdict{}).back() == "finish 0");
  }
  SECTION("workers end by themselves after the verdict") {
    CHECK(node.hear(Verdict{}).empty());
    CHECK(node.ended(0, {.signal = SIGKILL}) == Words{"signal 0 9"});
    CHECK(node.ended(1).back() == "finish 0");
  }
  SECTION("and have an hour for their last work") {
    node.hear(Verdict{});
    CHECK(node.wait(3599s).empty());
    CHECK(node.wait(1s) == Words{"signal 0 9", "signal 1 9"});
  }
  SECTION("or the grace, when a signal comes") {
    node.hear(Verdict{});
    CHECK(node.wait(60s).empty());
    CHECK(node.on(SignalCame{SIGTERM}) == Words{"leave", "signal 0 15", "signal 1 15"});
    CHECK(node.wait(30s) == Words{"signal 0 9", "signal 1 9"});
  }
  SECTION("a coordinator that was not there cannot make it a failure") {
    node.ended(0), node.ended(1);
    CHECK(node.hear(Verdict{.exit_code = 170, .report = "nobody came"}).back() == "finish 0");
  }
  SECTION("without a coordinator the node ends when its workers have") {
    node.ended(0);
    CHECK(node.on(LinkDown{}).empty());
    node.ended(1);
    CHECK(node.wait(9s).empty());  // one that comes back in time is told
    CHECK(node.wait(1s).back() == "finish 0");
  }
  SECTION("or when the coordinator goes after them") {
    node.ended(0), node.ended(1);
    node.on(LinkDown{});
    CHECK(node.wait(10s).back() == "finish 0");
  }
  SECTION("nor does it end the workers' last work, however long it is away") {
    node.on(LinkDown{});
    CHECK(node.wait(600s).empty());
    CHECK(node.said.find("the job is over, and needs none") != std::string::npos);
    CHECK(node.ended(0) == Words{"signal 0 9"});
    CHECK(node.on(LinkDown{{Code::unreachable, Remedy::retry, "refused"}}).empty());
    CHECK(node.said.empty());  // it is known how this node ends
    CHECK(node.wait(3599s).empty());
    SECTION("but for an hour at most") { CHECK(node.wait(1s) == Words{"signal 1 9"}); }
    CHECK(node.ended(1).back() == "finish 0");
  }
  SECTION("nor does the coordinator of another job, which answers in its place") {
    const Refused refused{{Code::mismatch, Remedy::fix_config, "run a is not run b"}};
    CHECK(node.hear(refused).empty());
    CHECK(node.said.find("means nothing to a job that is over") != std::string::npos);
    CHECK(node.wait(3599s).empty());
    node.ended(0);
    CHECK(node.ended(1).back() == "finish 0");
    CHECK(node.report.empty());
  }
  SECTION("which refuses a node whose workers have ended") {
    node.ended(0), node.ended(1);
    CHECK(node.hear(Refused{{Code::mismatch, Remedy::fix_config, "run a is not run b"}}).back() == "finish 0");
  }
  SECTION("or one whose workers are at their last work after the end of their generation") {
    node.hear(Revoke{generation(1), revoked});
    CHECK(node.hear(Refused{{Code::mismatch, Remedy::fix_config, "run a is not run b"}}).empty());
    node.ended(0);
    CHECK(node.ended(1).back() == "finish 0");
  }
  SECTION("a coordinator that is back in time hears it") {
    node.ended(0), node.ended(1);
    node.on(LinkDown{});
    node.wait(5s);
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0", "job finished"});
    CHECK(node.hear(Verdict{}).back() == "finish 0");
  }
}

TEST_CASE("a Job's worker that ends well before its job's end was decided has failed", "[supervisor][end]") {
  Node node;
  node.start();
  const auto open = [&](Hello hello) {
    for (std::uint32_t i = 0; i < 2; ++i) hello.rank = i, hello.pid = 100 + i, node.tell(10 + i, hello);
  };
  const auto told = [&]() -> std::optional<WorkerFailed> {
    for (const Action& a : node.actions)
      if (const auto* send = std::get_if<Send>(&a))
        if (const auto* failed = std::get_if<WorkerFailed>(&send->message)) return *failed;
    return {};
  };
  const Hello hello{.world = 2, .is_job = true, .stays = true, .says_end = true};
  SECTION("once its connection is read to its end") {
    open(hello);
    node.tell(10, StepDecided{generation(1), 9});
    CHECK(node.ended(0).empty());
    CHECK(node.on(WorkerHungUp{10}) == Words{"caller gone", "failed 0 1 job"});
    CHECK(told()->what == "exit code 0 after step 9, before the end of the job was decided");
    CHECK(told()->exit_code == 1);
    CHECK_FALSE(told()->before_session);
  }
  SECTION("or after a second, when a child of its holds that") {
    open(hello);
    CHECK(node.ended(0).empty());
    CHECK(node.wait(999ms).empty());
    CHECK(node.wait(1ms) == Words{"failed 0 1 job"});
  }
  SECTION("what it said last may be that end") {
    open(hello);
    CHECK(node.ended(0).empty());
    CHECK(node.tell(10, JobOver{generation(1)}) == Words{"job finished", "over 10"});
    CHECK(node.on(WorkerHungUp{10}) == Words{"caller gone"});
    node.tell(11, JobOver{generation(1)});
    node.ended(1);
    CHECK(node.on(WorkerHungUp{11}).empty() == false);
  }
  SECTION("of an earlier libelrun it is known once it has decided a step") {
    open({.world = 2, .is_job = true, .stays = true});
    CHECK(node.ended(0).empty());
    CHECK(node.ended(1) == Words{"done"});
  }
  SECTION("an earlier one that has") {
    open({.world = 2, .is_job = true, .stays = true});
    node.tell(10, StepDecided{generation(1), 9});
    node.ended(0);
    CHECK(node.on(WorkerHungUp{10}) == Words{"caller gone", "failed 0 1 job"});
  }
  SECTION("any other program is done when it ends") {
    open({.world = 2});
    CHECK(node.ended(0).empty());
    CHECK(node.ended(1) == Words{"done"});
  }
}

TEST_CASE("the coordinator hears what the workers are, and of a death whether it came before that was known", "[supervisor][end]") {
  Node node;
  node.start();
  const auto count = [&] {
    return std::count_if(node.actions.begin(), node.actions.end(), [](const Action& a) {
      return std::holds_alternative<Send>(a) && std::holds_alternative<WorkersAreJob>(std::get<Send>(a).message);
    });
  };
  SECTION("once per generation") {
    node.tell(10, Hello{.pid = 100, .rank = 0, .world = 2, .is_job = true, .stays = true});
    CHECK(count() == 1);
    node.tell(11, Hello{.pid = 101, .rank = 1, .world = 2, .is_job = true, .stays = true});
    CHECK(count() == 0);
  }
  SECTION("again to a coordinator that did not see it begin") {
    node.tell(10, Hello{.pid = 100, .rank = 0, .world = 2, .is_job = true, .stays = true});
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "gone"}});
    node.on(LinkUp{});
    node.hear(Resumed{generation(1), true});
    CHECK(count() == 1);
  }
  SECTION("a death before the session") {
    node.ended(0, {.exit_code = 127});
    CHECK(std::get<WorkerFailed>(std::get<Send>(node.actions.back()).message).before_session);
  }
  SECTION("and an end") {
    node.ended(0), node.ended(1);
    CHECK(std::get<WorkersDone>(std::get<Send>(node.actions.back()).message).before_session);
  }
}

TEST_CASE("a node that was left behind in an older generation ends its workers when the job is done", "[supervisor][end]") {
  Node node;
  node.start(1, 2, true);
  CHECK(node.hear(Verdict{.generation = generation(1)}).empty());  // of its own: they end by themselves
  Node behind;
  behind.start(1, 2, true);
  const Words words = behind.hear(Verdict{.generation = generation(3)});
  CHECK(std::count(words.begin(), words.end(), "signal 0 9") == 1);
  behind.ended(0, {.signal = SIGKILL});
  CHECK(behind.ended(1, {.signal = SIGKILL}).back() == "finish 0");
}

}  // namespace elrun::test
