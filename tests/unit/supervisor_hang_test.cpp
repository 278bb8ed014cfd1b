#include "tests/unit/supervisor_node.hpp"

namespace elrun::test {

TEST_CASE("workers that give no sign of progress are looked at, then asked by SIGABRT, then killed, and have failed with 174",
          "[supervisor]") {
  SECTION("of a Job the sign is a step, of any of its workers") {
    Node node{2, 60s, HangSign::progress};
    node.start(1, 2, true);
    node.wait(50s);
    node.tell(11, StepDecided{generation(1), 1});
    CHECK(node.wait(59s).empty());
    node.tell(11, Alive{});  // its session lives, but that is no progress
    CHECK(node.wait(1s) == Words{"stacks 0", "stacks 1"});
    CHECK(node.said.find("rank 0 (node n, pid 100), rank 1") != std::string::npos);
    CHECK(node.wait(5s) == Words{"signal 0 6", "signal 1 6"});
    CHECK(node.ended(0, {.signal = SIGABRT}) == Words{"failed 0 174 job"});
    const auto& failed = std::get<WorkerFailed>(std::get<Send>(node.actions.back()).message);
    CHECK(failed.death.evidence.find("it hung (no sign of progress for 60.0 s)") == 0);  // no fault of the program's abort
    CHECK(node.wait(2s) == Words{"signal 1 9"});
    CHECK(node.ended(1, {.signal = SIGKILL}) == Words{"failed 1 174 job"});
    CHECK(node.said.find("a hang (no sign of progress for 60.0 s), then signal 9") != std::string::npos);
  }
  SECTION("one that SIGKILL does not end is told of all the same, and the end of its node does not wait for it") {
    Node node{2, 60s, HangSign::progress};
    node.start(1, 2, true);
    node.wait(60s), node.wait(5s);
    node.ended(0, {.signal = SIGABRT});
    CHECK(node.wait(2s) == Words{"signal 1 9"});
    CHECK(node.wait(10s) == Words{"failed 1 174 job"});
    CHECK(node.said.find("rank 1 (node n, pid 101): SIGKILL has not ended it within 10.0 s: it is stuck in the kernel") == 0);
    const auto& failed = std::get<WorkerFailed>(std::get<Send>(node.actions.back()).message);
    CHECK(failed.what.find("a hang (no sign of progress for 60.0 s); SIGKILL has not ended it") == 0);
    CHECK(failed.death.pid == 101);
    node.on(LinkDown{{Code::unreachable, Remedy::retry, "gone"}});
    CHECK(node.on(LinkUp{}) == Words{"join resuming last 1 seat 0 broken"});
    CHECK(node.hear(Resumed{generation(1)}) == Words{"failed 0 174 job", "failed 1 174 job"});
    CHECK(node.hear(Revoke{generation(1), revoked}) == Words{"revoke 10", "signal 0 9", "revoke 11", "signal 1 9"});
    CHECK(node.wait(30s) == Words{"signal 1 9"});
    CHECK(node.wait(100s).empty());  // it may still act for its generation
    SECTION("by a signal") {
      node.on(SignalCame{SIGTERM});
      CHECK(node.wait(10s) == Words{"give up 1"});
      CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 143");
    }
    SECTION("by a verdict") {
      node.hear(Verdict{174, "a hang"});
      CHECK(node.wait(10s) == Words{"give up 1"});
      CHECK(node.ended(1, {.signal = SIGKILL}).back() == "finish 174");
    }
    SECTION("nor is it stuck once it has ended") { CHECK(node.ended(1, {.signal = SIGKILL}).back() == "join last 1"); }
  }
  SECTION("a worker that waits for the storage shows that it does not hang, and the log says once why it waits") {
    Node node{2, 60s, HangSign::progress};
    node.start(1, 2, true);
    const WaitsForStorage waits{generation(1), {"/ck", "rank 0: list /ck/gens has not returned for 12.0 s: is its server there?"}};
    node.wait(59s);
    node.tell(10, waits);
    CHECK(
        node.said.find("rank 0 (node n, pid 100) waits for the storage of its checkpoints, /ck: rank 0: list /ck/gens has not returned") !=
        std::string::npos);
    node.tell(11, WaitsForStorage{generation(1), {"/ck", ""}});  // it waits for the first one
    CHECK(node.said.empty());
    CHECK(node.wait(59s).empty());
    node.tell(10, waits), node.tell(11, waits);
    CHECK(node.said.empty());
    CHECK(node.wait(59s).empty());
    node.tell(10, WaitsForStorage{generation(7), {"/ck", "of no generation here"}});
    node.tell(11, waits);
    CHECK(node.wait(1s) == Words{"stacks 0"});  // one that says nothing hangs
    CHECK(node.said.find("of rank 0 (node n, pid 100) in generation 1") != std::string::npos);
  }
  SECTION("a new wait has a new line") {
    Node node{1, 60s, HangSign::progress};
    node.start(1, 1, true);
    const WaitsForStorage waits{generation(1), {"/ck", "rank 0: sync /ck/x has not returned for 12.0 s"}};
    node.tell(10, waits);
    node.tell(10, WentOnFrom{generation(1), {"/ck/ckpt/s000000000040.g00000001.a01", 40, 0, "the newest checkpoint", {}}});
    node.tell(10, waits);
    CHECK(node.said.find("waits for the storage") != std::string::npos);
    node.tell(10, StepDecided{generation(1), 41});
    node.tell(10, waits);
    CHECK(node.said.find("waits for the storage") != std::string::npos);
  }
  SECTION("the next generation begins without it") {
    Node node{1, 60s, HangSign::progress};
    node.start(1, 1, true);
    node.tell(10, WentOnFrom{generation(1), {"/ck/ckpt/s000000000040.g00000001.a01", 40, 0, "the newest checkpoint", {}}});
    node.wait(60s);
    node.wait(5s);
    node.ended(0, {.signal = SIGABRT});
    node.hear(Revoke{generation(1), revoked});
    CHECK(node.wait(100s).empty());
    node.start(2, 1, true);
    CHECK(std::get<Welcome>(std::get<Answer>(node.actions.back()).message)
              .remembered.failures.empty());  // elrun ended it: the checkpoint is no suspect
    CHECK(node.ended(0, {.signal = SIGSEGV}) == Words{"failed 0 139 job"});
  }
  SECTION("the end of a generation ends it") {
    Node node{1, 60s, HangSign::progress};
    node.start(1, 1, true);
    node.wait(60s);
    node.hear(Revoke{generation(1), revoked});
    CHECK(node.wait(5s).empty());
  }
  SECTION("without steps it is the life of the session") {
    Node node{1, 60s, HangSign::progress};
    node.start(1, 1);
    node.tell(10, Hello{.rank = 0, .world = 1});
    node.wait(59s);
    node.tell(10, Alive{});
    CHECK(node.wait(59s).empty());
    CHECK(node.wait(1s) == Words{"stacks 0"});
  }
  SECTION("of others there is no sign, unless their output is one") {
    Node silent{1, 60s, HangSign::progress};
    silent.start(1, 1);
    CHECK(silent.wait(1000s).empty());
    Node node{2, 60s, HangSign::output};
    node.start(1, 2);
    node.wait(59s);
    node.on(WorkerWrote{LocalRank{0}});
    CHECK(node.wait(1s) == Words{"stacks 0", "stacks 1"});
    CHECK(node.said.find("rank 0") == std::string::npos);
  }
  SECTION("who has ended, and a job that is over, are not waited for") {
    Node ended{2, 60s, HangSign::output};
    ended.start(1, 2);
    ended.ended(0);
    ended.wait(59s);
    ended.on(WorkerWrote{LocalRank{1}});
    CHECK(ended.wait(59s).empty());
    Node over{1, 60s, HangSign::progress};
    over.start(1, 1, true);
    over.tell(10, JobOver{generation(1)});
    CHECK(over.wait(100s).empty());
  }
}

}  // namespace elrun::test
