// When a Job is done, and when it is not; and nodes that cannot start it. Real launchers and workers.
#include <csignal>
#include <memory>

#include <fmt/format.h>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""s;

namespace {

std::string worker() { return test_program_path("ending_worker"); }

struct Ended {
  int code = -1;
  std::string output;
  [[nodiscard]] bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
  [[nodiscard]] std::string done() const {
    const auto at = output.find("done step=");
    return at == std::string::npos ? "" : output.substr(at, output.find('\n', at) - at);
  }
};

Ended finish(Job& job) {
  const int code = job.wait();
  return {code, job.output()};
}

Ended run(std::vector<std::string> options, const std::vector<std::string>& program, std::map<std::string, std::string> environment = {}) {
  const bool bare = options.empty();
  if (!bare) options.insert(options.end(), {"--no_python", worker()});
  options.insert(options.end(), program.begin(), program.end());
  Job job{{.arguments = std::move(options), .environment = std::move(environment), .program = bare ? worker() : "elrun"}};
  return finish(job);
}

const std::vector<std::string> two{"--nproc_per_node", "2"};

/// Agents on this machine's loopback, as several nodes would be.
struct Cluster {
  std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  /// `rank` orders them: the first one prints.
  [[nodiscard]] Job::Setting agent(const std::string& nodes, const std::string& rank, const std::vector<std::string>& program,
                                   const std::string& conf = "last_call_timeout=1") const {
    std::vector<std::string> arguments{"--nnodes",       nodes,  "--node_rank",     rank,     "--nproc_per_node", "1",
                                       "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_id",        "job",
                                       "--rdzv_conf",    conf,   "--no_python"};
    arguments.insert(arguments.end(), program.begin(), program.end());
    return {.arguments = std::move(arguments)};
  }
  [[nodiscard]] Job::Setting training(const std::string& nodes, const std::string& rank, const std::string& steps,
                                      const std::string& checkpoints = "") const {
    return agent(nodes, rank, {worker(), steps, "train", "0", checkpoints});
  }
};

}  // namespace

TEST_CASE("a program that leaves in mid-job has failed, whatever its exit code says", "[job_end][process]") {
  SECTION("exit(0) in a slot, on all ranks: the agent sees it, and the budget ends it") {
    std::vector<std::string> options = two;
    options.insert(options.end(), {"--event-log-handler", "console"});
    const Ended ended = run(options, {"20", "exit", "9"});
    INFO(ended.output);
    CHECK(ended.code == 1);
    CHECK_FALSE(ended.says("the job is done"));
    // The newest step that the agent heard of. Words of steps travel on a thread of their own, which exit(0) can end first.
    unsigned heard = 1;
    while (heard <= 9 && !ended.says(fmt::format("exit code 0 after step {}, before the end of the job was decided", heard))) ++heard;
    CHECK(heard <= 9);
    CHECK(ended.says("job.stop() ends a job early"));
    CHECK(ended.says("all 3 restarts"));
    CHECK(ended.says(R"("name":"torchelastic.worker.status.FAILED","source":"WORKER")"));
  }
  SECTION("return on all ranks") {
    const Ended ended = run(two, {"20", "return", "9"});
    INFO(ended.output);
    CHECK(ended.code == 1);
    CHECK_FALSE(ended.says("the job is done"));
    CHECK(ended.says("the program returned at step 9 of 20, before the job's end was decided"));
  }
  SECTION("return of a bare program") {
    const Ended ended = run({}, {"20", "return", "9"});
    INFO(ended.output);
    CHECK(ended.code == 1);
    CHECK(ended.says("the program returned at step 9 of 20, before the job's end was decided"));
  }
  SECTION("an exception that is no std::exception") {
    const Ended ended = run({}, {"20", "throw", "9"});
    INFO(ended.output);
    CHECK(ended.code == 1);
    CHECK(ended.says("elrun: the program ended by an exception that is no std::exception"));
  }
  SECTION("a program that never asks for a step is done when it returns") {
    CHECK(run({}, {"20", "look"}).code == 0);
    const Ended ended = run(two, {"20", "look"});
    INFO(ended.output);
    CHECK(ended.code == 0);
  }
}

TEST_CASE("a worker that is killed in its last work is told of, in the log and among the events, and the job succeeds",
          "[job_end][process]") {
  std::vector<std::string> options = two;
  options.insert(options.end(), {"--event-log-handler", "console"});
  const Ended ended = run(options, {"5", "killed", "1"});
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.done().starts_with("done step=5 "));
  CHECK(ended.says("ended by signal 9 (SIGKILL) after the job was over; it does not count"));
  CHECK(ended.says("exit_code\\\":[-9]"));
}

TEST_CASE("a second job in the same process runs without elrun, and is refused under it", "[job_end][process]") {
  const Ended alone = run({}, {"5", "twice"});
  INFO(alone.output);
  CHECK(alone.code == 0);
  CHECK(alone.output.find("done step=5 ") != alone.output.rfind("done step=5 "));
  const Ended ended = run(two, {"5", "twice"});
  INFO(ended.output);
  CHECK(ended.says("run was called again after the end of its job: under elrun, one process has one job"));
  CHECK(ended.says("ended by exit code 78 after the job was over"));
  CHECK(ended.says("error: rank "));
}

TEST_CASE("a reader of standard output that goes away ends no worker", "[job_end][process]") {
  for (const std::string& elrun : {std::string{}, program_path("elrun") + " --nproc_per_node 2 --max_restarts 0 --no_python "}) {
    const TemporaryDirectory directory;
    const std::string gone = directory.path() + "/gone";  // the job does not end before its reader has
    const std::string line = "{ " + elrun + worker() + " 30 waits 2 " + gone +
                             R"(; echo "code $?" >&2; } | { read -r line; echo "$line"; exec <&-; : >)" + gone + "; }";
    Job job{{.arguments = {"-c", line}, .program = "/bin/sh"}};
    const Ended ended = finish(job);
    INFO(ended.output);
    CHECK(ended.says("step=1 "));
    CHECK(ended.says("code 0\n"));
    CHECK_FALSE(ended.says("step=30 "));
    const std::string told = "nobody reads standard output any more";
    CHECK(ended.says(told));
    CHECK(ended.output.find(told) == ended.output.rfind(told));
  }
}

TEST_CASE("a forked child that stays in the loop is refused, and its parent's state is the undisturbed one", "[job_end][process]") {
  const std::string undisturbed = run({}, {"20", "train"}).done();
  REQUIRE(undisturbed.starts_with("done step=20 "));
  for (const char* const workers : {"1", "2", "3"}) {
    const Ended ended = run({"--nproc_per_node", workers}, {"20", "forked", "9"});
    INFO(ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.done() == undisturbed);
    CHECK(ended.output.find("done step=20 ") == ended.output.rfind("done step=20 "));
    CHECK(ended.says("this process was forked from worker"));
  }
  SECTION("with checkpoints, without elrun") {
    const TemporaryDirectory checkpoints;
    const Ended alone = run({}, {"20", "forked", "9", checkpoints.path()});
    INFO(alone.output);
    CHECK(alone.code == 0);
    CHECK(alone.done() == undisturbed);
    CHECK(alone.output.find("done step=20 ") == alone.output.rfind("done step=20 "));
  }
}

TEST_CASE("an agent that is asked to leave while a worker exports after the job's end does not end with 0", "[job_end][process]") {
  std::vector<std::string> options = two;
  options.insert(options.end(), {"--no_python", worker(), "5", "export", "1"});
  Job job{{.arguments = std::move(options)}};
  REQUIRE(job.line("exporting"));
  job.signal(SIGTERM);
  const Ended ended = finish(job);
  INFO(ended.output);
  CHECK(ended.code == 143);
  CHECK(ended.says("ended by signal 15 (SIGTERM) in its last work, because of SIGTERM"));
  CHECK_FALSE(ended.says("the job failed"));
}

TEST_CASE("job.stop() ends a job early, on all ranks, with the state of a plan that ends there", "[job_end][process]") {
  const std::string ten = run({}, {"10", "train"}).done();
  REQUIRE(ten.starts_with("done step=10 "));
  CHECK(run({}, {"20", "stop", "9"}).done() == ten);
  SECTION("in any world") {
    const Ended ended = run(two, {"20", "stop", "9"});
    INFO(ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.done() == ten);
    CHECK(ended.says("the program ended the job after step 10 of 20"));
  }
  SECTION("asked in a step during which one of those who ask dies: it is asked again as the step is done again") {
    const Ended ended = run(two, {"20", "stop_inside", "9"});
    INFO(ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.done() == ten);
  }
  SECTION("a later start finds that it is done; with a plan of more steps it goes on") {
    const TemporaryDirectory checkpoints;
    CHECK(run(two, {"20", "stop", "9", checkpoints.path()}).done() == ten);
    const Ended again = run(two, {"20", "train", "0", checkpoints.path()});
    INFO(again.output);
    CHECK(again.code == 0);
    CHECK(again.done() == ten);
    CHECK_FALSE(again.says("step=11 "));
    CHECK(run({}, {"21", "train", "0", checkpoints.path()}).done() == run({}, {"21", "train"}).done());
  }
}

TEST_CASE("a node whose program cannot start is excluded, and the others go on", "[job_end][process][grpc]") {
  Cluster cluster;
  Job a{cluster.training("1:3", "0", "600")};
  REQUIRE(a.line("serving the rendezvous"));
  Job b{cluster.training("1:3", "1", "600")};
  REQUIRE(a.line("world=2"));
  const std::string program =
      GENERATE(std::string{"exit 127"}, std::string{"exit 1"}, std::string{"kill -SEGV $$"}, std::string{"exit 78"});
  Job bad{cluster.agent("1:3", "2", {"/bin/sh", "-c", program})};
  CHECK(bad.line("excluded: its workers failed"));
  const Ended ended = finish(a);
  INFO(program << "\n" << ended.output);
  CHECK(ended.code == 0);
  CHECK(b.wait() == 0);
  CHECK(ended.says("done step=600 "));
  constexpr std::string_view words = "tries again in ";
  const auto first = ended.output.find(words);
  REQUIRE(first != std::string::npos);
  const auto second = ended.output.find(words, first + 1);
  REQUIRE(second != std::string::npos);
  CHECK(std::stoi(ended.output.substr(second + words.size())) >= 2);  // longer where its second start took the others more than a second
  CHECK(bad.wait() == 0);                                             // the job is done
}

TEST_CASE("a node that cannot start does so in the first generation too, and the others go on", "[job_end][process][grpc]") {
  Cluster cluster;
  Job bad{cluster.agent("2:3", "2", {"/bin/sh", "-c", "exit 127"}, "last_call_timeout=60")};
  REQUIRE(bad.line("serving the rendezvous"));
  Job a{cluster.agent("2:3", "0", {worker(), "200", "train"}, "last_call_timeout=60")};
  Job b{cluster.agent("2:3", "1", {worker(), "200", "train"}, "last_call_timeout=60")};
  CHECK(a.wait() == 0);
  CHECK(b.wait() == 0);
  CHECK(bad.wait() == 0);
  CHECK(a.says("done step=200 "));
  CHECK(bad.says("excluded: its workers failed"));
}

TEST_CASE("a newcomer that is another job ends alone, also where a new coordinator has seen no step yet", "[job_end][process][grpc]") {
  const Cluster cluster;
  const TemporaryDirectory checkpoints;
  const std::string port = cluster.endpoint.substr(cluster.endpoint.find(':') + 1), conf = "last_call_timeout=60,is_host=0";
  const auto serve = [&] {
    auto store = std::make_unique<Job>(Job::Setting{.arguments = {"store", "--host", "127.0.0.1", "--port", port}});
    REQUIRE(store->line("serving the rendezvous"));
    return store;
  };
  const auto trains = [&](const std::string& rank, const std::string& checkpoint) {
    return Job{cluster.agent("2:3", rank, {worker(), "400", "train", "0", checkpoint}, conf)};
  };
  auto store = serve();
  Job a{trains("0", "")}, b{trains("1", "")}, lost{trains("2", "")};
  REQUIRE(a.line("world=3"));
  store->signal(SIGKILL), lost.signal(SIGKILL);
  store->wait(), lost.wait();
  Job other{trains("2", checkpoints.path())};  // in the place of the lost one, as a machine that is back with another configuration
  REQUIRE(other.line("retries for another"));
  store = serve();
  CHECK(other.line("excluded: its workers failed"));
  const Ended ended = finish(a);
  INFO(ended.output << "\n" << store->output());
  CHECK(ended.code == 0);
  CHECK(b.wait() == 0);
  CHECK(ended.says("done step=400 "));
  CHECK(other.wait() == 0);  // the job is done
}

TEST_CASE("an agent that is started again and again does not use up the restarts of the job", "[job_end][process][grpc]") {
  Cluster cluster;
  Job a{cluster.training("1:3", "0", "600")};
  REQUIRE(a.line("serving the rendezvous"));
  REQUIRE(a.line("step="));
  for (int i = 0; i < 2; ++i) {
    Job bad{cluster.agent("1:3", "2", {worker(), "600", "die"})};
    REQUIRE(a.line("ended by exit code 3"));  // the coordinator has heard of it
    bad.signal(SIGKILL);
    bad.wait();
    REQUIRE(a.line("step="));
  }
  Job bad{cluster.agent("1:3", "2", {worker(), "600", "die"})};
  const std::string excluded = "excluded: its workers failed ", failure = ") ended by exit code 3 in generation";
  const auto line = bad.line(excluded);
  REQUIRE(line);
  INFO(bad.output());
  // Once by itself, and at least once by each before it: one that is killed late has failed again by then.
  const std::string until_then = bad.output().substr(0, bad.output().find(excluded));
  CHECK(until_then.find(failure) != std::string::npos);
  CHECK(until_then.find(failure) == until_then.rfind(failure));
  CHECK(std::stoi(line->substr(line->find(excluded) + excluded.size())) >= 3);
  CHECK(a.wait() == 0);
  CHECK(bad.wait() == 0);
  CHECK(a.says("done step=600 "));
}

TEST_CASE("a member whose program hangs when it is started again holds nobody up", "[job_end][process][grpc]") {
  Cluster cluster;
  const TemporaryDirectory directory;
  const std::string conf = "last_call_timeout=1,start_timeout=3",
                    nodes = "2:3";  // the first world is of two, however late the second comes
  Job a{cluster.agent(nodes, "0", {worker(), "1000", "train"}, conf)};
  REQUIRE(a.line("serving the rendezvous"));
  Job b{cluster.agent(nodes, "1", {worker(), "1000", "train"}, conf)};
  REQUIRE(a.line("world=2"));
  Job stuck{cluster.agent(
      nodes, "2", {"/bin/sh", "-c", R"(mkdir "$0" && exec "$@"; exec sleep 1000)", directory.path() + "/once", worker(), "1000", "train"},
      conf)};
  REQUIRE(a.line("world=3"));
  const auto workers = stuck.children_named("ending_worker");
  REQUIRE(workers.size() == 1);
  ::kill(workers[0], SIGKILL);
  CHECK(stuck.line("1 worker is started here meanwhile"));
  CHECK(a.line("world=2"));
  CHECK(stuck.line("not ready within 3.0 s (start_timeout)"));
  CHECK(a.wait() == 0);
  CHECK(b.wait() == 0);
  CHECK(stuck.wait() == 0);  // the job is done
  INFO(a.output());
  CHECK(a.says("done step=1000 "));
  CHECK_FALSE(a.says("generation 4"));
  CHECK_FALSE(a.says("restart 1 of"));
}

TEST_CASE("a node that joins, and whose program hangs at its start, holds nobody up", "[job_end][process][grpc]") {
  Cluster cluster;
  SECTION("without --hang_timeout its workers are ended after start_timeout") {
    const std::string conf = "last_call_timeout=1,start_timeout=3";
    Job a{cluster.agent("1:2", "0", {worker(), "1000", "train"}, conf)};
    REQUIRE(a.line("serving the rendezvous"));
    REQUIRE(a.line("step="));
    Job stuck{cluster.agent("1:2", "1", {"sleep", "1000"}, conf)};
    CHECK(stuck.line("not ready within 3.0 s (start_timeout) of worker 0, which was started beside generation 1"));
    CHECK(a.line("failure 1 in a row"));
    stuck.signal(SIGTERM);
    CHECK(a.wait() == 0);
    INFO(a.output());
    CHECK(a.says("done step=1000 "));
    CHECK_FALSE(a.says("generation 2"));
  }
  SECTION("with --hang_timeout it is the one that hangs") {
    const auto hangs_after = [](const char* time, Job::Setting setting) {
      setting.arguments.insert(setting.arguments.begin(), {"--hang_timeout", time});
      return setting;
    };
    Job a{hangs_after("10", cluster.training("1:2", "0", "1000"))};
    REQUIRE(a.line("serving the rendezvous"));
    REQUIRE(a.line("step=100 "));
    Job stuck{hangs_after("3", cluster.agent("1:2", "1", {"sleep", "1000"}))};
    CHECK(stuck.line("this is a hang"));
    CHECK(a.line("ended by a hang (no sign of progress for 3.0 s)"));
    stuck.signal(SIGTERM);
    CHECK(a.wait() == 0);
    INFO(a.output());
    CHECK_FALSE(a.says("this is a hang"));
    CHECK(a.says("done step=1000 "));
  }
}
