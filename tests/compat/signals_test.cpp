// Statements 56 to 60 of the compatibility list: signals.
#include <algorithm>
#include <csignal>

#include "tests/compat/support.hpp"

namespace elrun::test {
namespace {

std::vector<std::string> shell(std::vector<std::string> options, const std::string& script) {
  return joined(std::move(options), {"--no_python", "/bin/sh", "-c", script});
}

/// A worker that says which signal came, and ends well; until then it waits in `wait`, which a trap interrupts.
const std::string says_signals =
    "for s in TERM INT HUP QUIT USR1; do trap \"echo got $$s; exit 0\" $$s; done; sleep 1000 & echo ready; wait";

}  // namespace

TEST_CASE("56 a signal that asks elrun to end is given to each worker's group; the exit code says which it was", "[compat]") {
  const std::pair<int, std::string> signals[] = {{SIGTERM, "TERM"}, {SIGINT, "INT"}, {SIGHUP, "HUP"}, {SIGQUIT, "QUIT"}};
  for (const auto& [number, name] : signals) {
    CAPTURE(name);
    const Meeting here;
    Job job{here.alone(shell({"--nproc_per_node", "2"}, says_signals))};
    REQUIRE(job.line("ready", patience));
    REQUIRE(job.line("ready", patience));
    job.signal(number);
    CHECK(job.wait(patience) == 128 + number);  // torchrun: 1
    CHECK(reported_times(job.output(), "got " + name) == 2);
  }
  SECTION("and as torchrun has it with its exit codes") {
    const Meeting here;
    Job job{here.alone(shell({"--exit_codes", "torchrun"}, says_signals))};
    REQUIRE(job.line("ready", patience));
    job.signal(SIGTERM);
    CHECK(job.wait(patience) == 1);
  }
}

TEST_CASE("57 workers that ignore the signal are gone after the shutdown timeout, by flag or by variable", "[compat]") {
  const std::string deaf = "trap '' TERM; echo ready; while true; do sleep 1; done";
  SECTION("the flag") {
    const Meeting here;
    Job job{here.alone(shell({"--shutdown-timeout", "1"}, deaf), {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1000"}})};
    REQUIRE(job.line("ready", patience));
    const std::vector<Watch> children = job.children();
    job.signal(SIGTERM);
    CHECK(job.wait(patience) == 143);
    CHECK(job.says("did not end in time"));
    CHECK(job.says("SIGTERM: this node has left; 1 worker killed; exit code 143"));
    CHECK(std::all_of(children.begin(), children.end(), [](const Watch& child) { return child.ended(patience); }));
  }
  SECTION("the variable") {
    const Meeting here;
    Job job{here.alone(shell({}, deaf), {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1"}})};
    REQUIRE(job.line("ready", patience));
    job.signal(SIGTERM);
    CHECK(job.wait(patience) == 143);
  }
  SECTION("a negative one is an error") {
    const Meeting here;
    Job job{here.alone(shell({"--shutdown-timeout=-1"}, "true"))};
    CHECK(job.wait(patience) != 0);
    CHECK(job.says("--shutdown_timeout -1"));
  }
}

TEST_CASE("58 of --signals-to-handle SIGUSR1 is given to the workers, and ends the job", "[compat]") {
  const Meeting here;
  Job job{here.alone(shell({"--signals-to-handle", "SIGTERM,SIGUSR1"}, says_signals))};
  REQUIRE(job.line("ready", patience));
  job.signal(SIGUSR1);
  CHECK(job.wait(patience) == 128 + SIGUSR1);
  CHECK(job.says("got USR1"));
}

TEST_CASE("59 a signal to one agent does not end the job: the others go on, and it can come back", "[compat]") {
  const Meeting here;
  // Two workers are a world of the first and of the third generation; one is that of the second.
  const std::string script =
      "echo \"ready world=$WORLD_SIZE generation=$ELRUN_GENERATION\"; [ $ELRUN_GENERATION = 3 ] && exit 0; sleep 1000";
  const std::vector<std::string> options = shell({"--rdzv_conf", "last_call_timeout=60"}, script);
  Job stays{here.node("1:2", options)};
  REQUIRE(stays.line("serving the rendezvous", patience));
  Job leaves{here.node("1:2", options)};
  REQUIRE(leaves.line("ready world=2", patience));
  leaves.signal(SIGTERM);
  CHECK(leaves.wait(patience) == 143);
  REQUIRE(stays.line("ready world=1", patience));
  Job again{here.node("1:2", options)};
  REQUIRE(again.line("ready world=2 generation=3", patience));
  CHECK(again.wait(patience) == 0);
  CHECK(stays.wait(patience) == 0);
}

TEST_CASE("60 an elrun that is killed leaves no worker", "[compat]") {
  const Meeting here;
  Job job{here.alone(shell({"--nproc_per_node", "2"}, "sleep 1000 & echo ready; wait"))};
  REQUIRE(job.line("ready", patience));
  REQUIRE(job.line("ready", patience));
  const std::vector<Watch> children = job.children();
  CHECK(children.size() == 3);  // two workers and the guard
  job.signal(SIGKILL);
  CHECK(job.wait(patience) == 137);  // and with it all that held its output: the workers' own children
  CHECK(std::all_of(children.begin(), children.end(), [](const Watch& child) { return child.ended(patience); }));
}

}  // namespace elrun::test
