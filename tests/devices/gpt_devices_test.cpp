// The gpt sample on devices, as a user starts it: kernels of its own, its gradients and optimizer on the device, and the state that the host comes to.

#include <csignal>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"

using namespace elrun::test;

namespace {

using Environment = std::map<std::string, std::string>;
const Environment four_devices{{"ELRUN_DEVICE", "cuda"}, {"FAKEGPU_DEVICES", "4"}};

std::vector<std::string> on_devices(std::vector<std::string> options, const std::vector<std::string>& gpt) {
  options.insert(options.end(), {"--no_python", test_program_path("gpt_on_fake_devices")});
  options.insert(options.end(), gpt.begin(), gpt.end());
  return options;
}

/// Three steps of one worker on the host.
std::string state_on_host(const Folder& folder, const std::vector<std::string>& more = {}) {
  const Ended host = run("gpt", gpt_arguments(folder / "text", 3, more), {{"ELRUN_DEVICE", "cpu"}});
  INFO(host.output);
  REQUIRE(host.code == 0);
  REQUIRE(!host.state.empty());
  return host.state;
}

/// Two workers, of which the second is killed after its first step. Where this comes so late that no step is left, it is done again.
Ended with_a_kill(const std::vector<std::string>& gpt) {
  Ended ended;
  for (int tries = 0; tries < 5; ++tries) {
    const auto job = start("elrun", on_devices({"--standalone", "--nproc_per_node", "2"}, gpt), four_devices);
    REQUIRE(job->line("step=1 "));
    const auto workers = job->children_named("gpt_on_fake_dev");  // as much as the system keeps of a name
    if (workers.size() == 2) (void)::kill(workers[1], SIGKILL);
    ended = finish(*job);
    if (ended.code != 0 || ended.says("recovered: step ") || ended.says("fakegpu")) break;
  }
  return ended;
}

}  // namespace

TEST_CASE("gpt goes on from a device's checkpoint on the host, and the other way round", "[devices]") {
  const Folder folder;
  const std::string host = state_on_host(folder), first = GENERATE("device", "host");
  CAPTURE(first);
  const auto part = [&](const std::string& where, unsigned steps) {
    const auto arguments = gpt_arguments(folder / "text", steps, {"--checkpoint", folder / "checkpoints", "--lr", "0.002"});
    return where == "host" ? run("gpt", arguments, {{"ELRUN_DEVICE", "cpu"}})
                           : run(test_program_path("gpt_on_fake_devices"), arguments, four_devices);
  };
  const Ended begun = part(first, 1), ended = part(first == "host" ? "device" : "host", 3);
  INFO(begun.output << ended.output);
  CHECK((begun.code == 0 && ended.code == 0));
  CHECK(ended.says("step=3"));
  CHECK(!ended.says("step=1 "));
  CHECK(ended.says("; the job now runs on "));
  CHECK(!ended.says("fakegpu"));
}

TEST_CASE("gpt on devices loses a worker by SIGKILL, goes on from the survivors' state, and ends in the host's", "[devices]") {
  const Folder folder;
  const std::string host = state_on_host(folder);
  const Ended ended = with_a_kill(gpt_arguments(folder / "text", 3, {"--zero", "0"}));
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK((ended.says("ended by signal 9") && ended.says("recovered: step ")));
  CHECK(ended.state == host);
  CHECK(!ended.says("fakegpu"));
}

TEST_CASE("gpt on devices saves while it trains, and the host goes on from what it saved", "[devices]") {
  const Folder folder;
  const std::vector<std::string> tiny{"--channels", "16", "--context", "16", "--global-batch", "4"};
  const std::string host = state_on_host(folder, tiny), workers = GENERATE("1", "2"), zero = workers == "1" ? "0" : "3";
  CAPTURE(workers);
  const auto saves = [&](unsigned steps) {
    std::vector<std::string> more{"--zero", zero, "--checkpoint", folder / "checkpoints", "--every", "1", "--async", "--lr", "0.002"};
    more.insert(more.end(), tiny.begin(), tiny.end());
    return gpt_arguments(folder / "text", steps, more);
  };
  Environment slow = four_devices;
  slow["FAKEGPU_FAULTS"] = "slow_copies:150";  // those of the state last longer than a step
  slow["FAKEGPU_CONTEXTS"] = "1";              // no worker touches another one's device
  const Ended begun = run("elrun", on_devices({"--standalone", "--nproc_per_node", workers}, saves(2)), slow);
  const Ended ended = run("gpt", saves(3), {{"ELRUN_DEVICE", "cpu"}});
  INFO(begun.output << ended.output);
  CHECK(begun.code == 0);
  CHECK(begun.says("[elrun ckptd"));  // it commits
  CHECK(!begun.says("could not be saved"));
  CHECK(!begun.says("fakegpu"));
  CHECK(ended.code == 0);
  CHECK(!ended.says("step=2 "));
  CHECK(ended.state == host);
}

#ifdef GPT_IN_BF16
namespace {

std::vector<std::string> bf16_arguments(const Folder& folder, unsigned steps, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all{"--precision", "bf16", "--channels",     "32", "--heads",       "2",
                               "--context",   "16",   "--global-batch", "6",  "--micro-batch", "1"};
  all.insert(all.end(), more.begin(), more.end());
  return gpt_arguments(folder / "text", steps, all);
}

}  // namespace

TEST_CASE("gpt in bf16 has one final state on devices for any order of work, and after a SIGKILL", "[devices]") {
  const Folder folder;
  static const Ended alone = run(test_program_path("gpt_on_fake_devices"), bf16_arguments(folder, 3, {"--zero", "0"}), four_devices);
  INFO(alone.output);
  REQUIRE(alone.code == 0);
  REQUIRE(!alone.state.empty());
  CHECK(!alone.says("fakegpu"));
  SECTION("activations computed again, exchanges beside compute, audits") {
    const Ended again = run(test_program_path("gpt_on_fake_devices"),
                            bf16_arguments(folder, 3, {"--zero", "0", "--recompute", "--sample", "2"}), four_devices);
    const auto two = [&](const std::vector<std::string>& more) {
      return run("elrun", on_devices({"--standalone", "--nproc_per_node", "2"}, bf16_arguments(folder, 3, more)), four_devices);
    };
    const Ended beside = two({"--zero", "3", "--overlap", "on", "--verify", "1"}), audited = two({"--zero", "1", "--audit", "1"});
    for (const Ended* ended : {&again, &beside, &audited}) {
      INFO(ended->output);
      CHECK(ended->code == 0);
      CHECK(ended->state == alone.state);
      CHECK(!ended->says("fakegpu"));
    }
    CHECK(again.says("sample: "));
    CHECK(audited.says("audited"));
  }
  SECTION("a worker is killed") {
    const Ended ended = with_a_kill(bf16_arguments(folder, 3, {"--zero", "0"}));
    INFO(ended.output);
    CHECK(ended.code == 0);
    CHECK((ended.says("ended by signal 9") && ended.says("recovered: step ")));
    CHECK(ended.state == alone.state);
    CHECK(!ended.says("fakegpu"));
  }
}

TEST_CASE("gpt in bf16 is refused on the host, and does not go on from a checkpoint in fp32", "[devices]") {
  const Folder folder;
  const Ended host =
      run(test_program_path("gpt_on_fake_devices"), bf16_arguments(folder, 1), {{"ELRUN_DEVICE", "cpu"}, {"FAKEGPU_DEVICES", "1"}});
  INFO(host.output);
  CHECK(host.code == 78);
  CHECK(host.says("this worker computes on the host: start it where a GPU is visible"));
  const auto arguments = [&](const std::string& precision, unsigned steps) {
    return gpt_arguments(folder / "text", steps,
                         {"--precision", precision, "--channels", "32", "--heads", "2", "--context", "16", "--checkpoint",
                          folder / "checkpoints", "--lr", "0.002"});
  };
  const Ended begun = run(test_program_path("gpt_on_fake_devices"), arguments("fp32", 1), four_devices);
  const Ended other = run(test_program_path("gpt_on_fake_devices"), arguments("bf16", 2), four_devices);
  INFO(begun.output << other.output);
  CHECK(begun.code == 0);
  CHECK(other.code == 78);
  CHECK((other.says("numeric class") && other.says("bf16 on fake device by cuBLASLt ")));
}
#endif

TEST_CASE("a program that is not written for devices stays on the host beside one, and is refused where it asks for it", "[devices]") {
  const std::string bin = program_path("flat_after"), devices = bin.substr(0, bin.rfind("/bin/")) + "/lib/devices";
  const Environment beside{{"LD_LIBRARY_PATH", devices}, {"FAKEGPU_DEVICES", "1"}};
  Environment asks = beside;
  asks["ELRUN_DEVICE"] = "cuda";
  const Ended refused = run("flat_after", {"--steps", "2"}, asks), runs = run("flat_after", {"--steps", "2"}, beside);
  INFO(refused.output << runs.output);
  CHECK(refused.code == 78);
  CHECK(refused.says("ELRUN_DEVICE=cuda: this program computes on the CPU alone"));
  CHECK(runs.code == 0);
}
