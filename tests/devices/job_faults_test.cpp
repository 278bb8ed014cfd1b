// What goes wrong on one worker's device, by number, under the real launcher: the failure names rank, device, call and what to do, the worker is started again where that helps, and
// the job ends in the state of one in which nothing happened.

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace {

bool full() { return std::getenv("ELRUN_FULL") != nullptr; }

using Words = std::vector<std::string>;

/// Two workers with a device each, of which the first that comes has `fault` (NAME=VALUE), once.
struct Ended {
  int code = -1;
  bool came = false;  // a worker ended or the generation did: else the number is beyond what the job does
  std::string output, state;
  [[nodiscard]] bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};
Ended run_with(const std::string& fault, const Words& options = {}, const std::map<std::string, std::string>& more = {}) {
  const TemporaryDirectory folder;
  Words arguments{"--nproc_per_node", "2", "--max_restarts", "3"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const std::string& word :
       {std::string{"--no_python"}, test_program_path("job_worker"), std::string{"once"}, fault, folder.path() + "/had"})
    arguments.push_back(word);
  std::map<std::string, std::string> environment{{"FAKEGPU_DEVICES", "2"}, {"FAKEGPU_NCCL_DIR", folder.path()}};
  environment.insert(more.begin(), more.end());
  Job job{{.arguments = arguments, .environment = environment}};
  Ended ended;
  ended.code = job.wait(Wait{120000});
  ended.output = job.output();
  ended.came = ended.says("generation 2: ");
  if (const auto at = ended.output.find("done "); at != std::string::npos) ended.state = ended.output.substr(at, 21);
  return ended;
}

std::string state_on_host() {
  Job job{{.environment = {{"ELRUN_DEVICE", "cpu"}}, .program = test_program_path("job_worker")}};
  CHECK(job.wait() == 0);
  const auto at = job.output().find("done ");
  REQUIRE(at != std::string::npos);
  return job.output().substr(at, 21);
}

/// `kind`:1, :2, ... until the job does not come to that number. How many there were.
int for_each_number(const std::string& kind, int stride, const std::string& state, const Words& says,
                    const std::map<std::string, std::string>& more = {}) {
  int number = 1, count = 0;
  for (;; number += stride, ++count) {
    const std::string fault = kind + std::to_string(number);
    const Ended ended = run_with(fault, {}, more);
    INFO(fault << '\n' << ended.output);
    REQUIRE(ended.code == 0);
    CHECK(ended.state == state);
    CHECK(!ended.says("fakegpu["));
    if (!ended.came) return count;
    for (const std::string& text : says) CHECK(ended.says(text));
  }
}

}  // namespace

TEST_CASE("a launch or an allocation that fails, at any number, costs a restart, and the job ends in the same state", "[devices]") {
  const std::string state = state_on_host();
  const Words named{" of generation 1@", " on device ", "; exit"};
  const auto with = [&](Words more) {
    more.insert(more.end(), named.begin(), named.end());
    return more;
  };
  const int stride = full() ? 1 : 4;
  CHECK(for_each_number("FAKEGPU_FAULTS=launch:", stride, state, with({"the launch of ", "_kernel gave cudaErrorLaunchOutOfResources"})) >=
        18 / stride);
  CHECK(for_each_number("FAKEGPU_FAULTS=malloc:", full() ? 1 : 3, state,
                        with({"elrun: exhausted: rank ", "cudaMalloc(", "its memory is used up"})) >= 3);
  CHECK(for_each_number("FAKEGPU_FAULTS=pinned:", full() ? 1 : 2, state,
                        with({"elrun: exhausted: rank ", "cudaHostAlloc(", "page-locked memory"})) >= 2);
}

TEST_CASE("a device that is lost at any kernel is left with its process", "[devices]") {
  const std::string state = state_on_host();
  for (const char* quiet : {"0", "1"})  // whether cudaSetDevice and cudaGetDevice succeed there
    CHECK(for_each_number("FAKEGPU_FAULTS=sticky:", full() ? 1 : 5, state,
                          {"elrun: internal: rank ", " of generation 1@", "cudaErrorIllegalAddress", "; exit"},
                          {{"FAKEGPU_LOST_IS_QUIET", quiet}}) >= 3);
  CHECK(for_each_number("FAKEGPU_NCCL_KILL_AT=", full() ? 1 : 6, state, {"ended by signal 9"}) >= 2);
}

TEST_CASE("a call of NCCL that fails ends the generation with its reason, and both workers go on", "[devices]") {
  const std::string state = state_on_host();
  // The first makes the id of the group: then there is none, and the bytes go through the host.
  for (const std::string& number : full() ? Words{"1", "2", "3", "5", "8", "13", "21", "34"} : Words{"1", "14"}) {
    const Ended ended = run_with("FAKEGPU_NCCL_FAIL_AT=" + number);
    INFO(ended.output);
    CHECK((ended.code == 0 && ended.state == state));
    CHECK(ended.says(" on cuda:"));
    CHECK(ended.says("a call of the system failed (a socket, shared memory, a limit); NCCL_DEBUG=WARN names it"));
    CHECK(ended.says("2 go on here in the same process"));
    CHECK(!ended.says("fakegpu["));
  }
}

TEST_CASE("a call of NCCL that fails on one rank is that rank's failure, and no death is waited for", "[devices]") {
  for (const std::string rank : {"0", "2"}) {
    const TemporaryDirectory folder;
    Job job{{.arguments = {"--nproc_per_node", "3", "--max_restarts", "0", "--no_python", test_program_path("job_worker"), "once",
                           "FAKEGPU_NCCL_FAIL_AT=14", folder.path() + "/had", rank},
             .environment = {{"FAKEGPU_DEVICES", "3"}, {"FAKEGPU_NCCL_DIR", folder.path()}}}};
    CHECK(job.wait(Wait{120000}) == 1);
    INFO(job.output());
    CHECK(job.says("error: rank " + rank + " ("));
    CHECK(job.says("cannot go on in this generation, and lost no peer"));
    CHECK(job.says("  rank      : " + rank + " (local_rank: " + rank + ")"));
    CHECK_FALSE(job.says("1970"));
    CHECK_FALSE(job.says("recovery: detect 5."));  // s, by which a silent node is known
  }
}

TEST_CASE("a kernel that never ends is a hang for the agent, which starts the workers again", "[devices]") {
  const Ended ended = run_with("FAKEGPU_FAULTS=stuck:9", {"--hang_timeout", "5"});
  INFO(ended.output);
  CHECK(ended.says("this is a hang"));
  CHECK((ended.code == 0 && ended.state == state_on_host()));
}

TEST_CASE("where every worker's device fails the job ends when its restarts are used up, or at once with 78", "[devices]") {
  const auto job_of = [](const std::string& faults) {
    return Job::Setting{.arguments = {"--nproc_per_node", "2", "--max_restarts", "1", "--no_python", test_program_path("job_worker")},
                        .environment = {{"FAKEGPU_DEVICES", "2"}, {"FAKEGPU_FAULTS", faults}, {"ELRUN_DEVICE", "cuda"}}};
  };
  Job exhausted{job_of("malloc:4")}, absent{job_of("no_driver")}, not_started{job_of("count:999")};
  CHECK(exhausted.wait() == 1);
  CHECK((exhausted.says("all 1 restarts (--max_restarts) are used") && exhausted.says("its memory is used up")));
  CHECK(absent.wait() == 78);
  CHECK((absent.says("a wrong configuration is not restarted") && absent.says("there is no NVIDIA driver")));
  CHECK(not_started.wait() == 78);
  CHECK((not_started.says("a wrong configuration is not restarted") && not_started.says("/dev/nvidia-uvm")));
  CHECK_FALSE(not_started.says("lost the device"));
}
