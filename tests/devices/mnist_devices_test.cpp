// The mnist sample on devices, as a user starts it: kernels of its own, and the state and the accuracy that the host comes to.

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/digits.hpp"
#include "tests/support/gpt_job.hpp"

using namespace elrun::test;

namespace {

using Environment = std::map<std::string, std::string>;

/// Devices of one machine. NCCL of processes on them meets in a folder of their own.
struct Devices {
  TemporaryDirectory folder;
  [[nodiscard]] Environment environment(const Environment& more = {}) const {
    Environment all{{"ELRUN_DEVICE", "cuda"}, {"FAKEGPU_DEVICES", "4"}, {"FAKEGPU_NCCL_DIR", folder.path()}};
    for (const auto& [name, value] : more) all[name] = value;
    return all;
  }
};

/// One step of three slots of one image each, for an image takes a second of a processor here. Of ten images, eight are trained on, and two are tested at the end.
struct Images {
  TemporaryDirectory directory;
  Images() { write_digits(directory.path(), "t10k", 10, 1); }
  [[nodiscard]] std::vector<std::string> arguments(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{
        "--data_path", directory.path(), "--micro_batch", "1", "--test_every", "9", "--seed", "7", "--steps", "1", "--global_batch", "3"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

std::vector<std::string> on_devices(std::vector<std::string> options, const std::vector<std::string>& mnist) {
  options.insert(options.end(), {"--no_python", test_program_path("mnist_on_fake_devices")});
  options.insert(options.end(), mnist.begin(), mnist.end());
  return options;
}

/// What a job says at its end: loss, accuracy and state.
std::string result_of(const Ended& ended) {
  const auto at = ended.output.rfind("\ndone ");
  return at == std::string::npos ? "" : ended.output.substr(at + 1, ended.output.find('\n', at + 1) - at - 1);
}

std::string result_on_host(const Images& images, const std::vector<std::string>& more = {}) {
  const Ended host = run("mnist", images.arguments(more), {{"ELRUN_DEVICE", "cpu"}});
  INFO(host.output);
  REQUIRE(host.code == 0);
  REQUIRE(result_of(host).find("state=") != std::string::npos);
  return result_of(host);
}

}  // namespace

TEST_CASE("mnist on a device has the host's bits with several images in a slot, a last group that is not full among them", "[devices]") {
  const Images images;
  const std::vector<std::string> slots{"--global_batch", "5", "--micro_batch", "5", "--steps", "1"};
  const Devices devices;
  const Ended ended = run(test_program_path("mnist_on_fake_devices"), images.arguments(slots), devices.environment());
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(result_of(ended) == result_on_host(images, slots));
  CHECK(!ended.says("fakegpu"));
}

TEST_CASE("mnist on devices loses a worker by SIGKILL, goes on from the survivors' state, and ends in the host's", "[devices]") {
  const Images images;
  const Devices devices;
  const std::vector<std::string> two_slots{"--steps", "3", "--global_batch", "2"};
  Ended ended;
  for (int tries = 0; tries < 5; ++tries) {  // where the kill comes so late that no step is left, all of it is done again
    const auto job =
        start("elrun", on_devices({"--standalone", "--nproc_per_node", "2"}, images.arguments(two_slots)), devices.environment());
    REQUIRE(job->line("step=1 "));
    const auto workers = job->children_named("mnist_on_fake_d");  // as much as the system keeps of a name
    if (workers.size() == 2) (void)::kill(workers[1], SIGKILL);
    ended = finish(*job);
    if (ended.code != 0 || ended.says("recovered: step ") || ended.says("fakegpu")) break;
  }
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK((ended.says("ended by signal 9") && ended.says("recovered: step ")));
  CHECK(result_of(ended) == result_on_host(images, two_slots));
  CHECK(!ended.says("fakegpu"));
}

TEST_CASE("mnist that goes on from a device's checkpoint on the host says that bits may differ", "[devices]") {
  const Images images;
  const TemporaryDirectory folder;
  const Devices devices;
  const auto arguments = [&](const std::string& steps) {
    return images.arguments({"--checkpoint_path", folder.path() + "/ck", "--global_batch", "1", "--steps", steps});
  };
  const Ended begun = run(test_program_path("mnist_on_fake_devices"), arguments("1"), devices.environment());
  const Ended ended = run("mnist", arguments("2"), {{"ELRUN_DEVICE", "cpu"}});
  INFO(begun.output << ended.output);
  CHECK((begun.code == 0 && ended.code == 0));
  CHECK(ended.says("step=2 "));
  CHECK(!ended.says("step=1 "));
  CHECK(ended.says("; the job now runs on cpu"));
}
