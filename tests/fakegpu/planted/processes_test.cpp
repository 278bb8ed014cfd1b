// The fake devices as a process sees them: its end, its driver, memory and events of another process.

#include <csignal>
#include <fstream>
#include <sstream>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace {

Job process(std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
  return Job{
      {.arguments = std::move(arguments), .environment = std::move(environment), .program = program_path("../tests/fakegpu_process")}};
}

}  // namespace

TEST_CASE("a host that touches memory of a device is named, and ends", "[devices]") {
  Job job = process({"host_touch"});
  CHECK(job.wait() == 86);
  CHECK_THAT(job.output(), Catch::Contains("the host reads offset 12 of allocation 1 (4000 bytes on device 0)"));
}

TEST_CASE("a process with a report fails, and says it in a file for all processes of a test", "[devices]") {
  const TemporaryDirectory directory;
  const std::string file = directory.path() + "/reports";
  Job failing = process({"report"}, {{"FAKEGPU_REPORTS", file}});
  CHECK(failing.wait() == 86);
  Job allowed = process({"report"}, {{"FAKEGPU_REPORTS", file}, {"FAKEGPU_REPORT_EXIT", "0"}});
  CHECK(allowed.wait() == 0);
  std::ifstream in{file};
  std::stringstream text;
  text << in.rdbuf();
  CHECK_THAT(text.str(), Catch::Contains("fakegpu[" + std::to_string(failing.pid()) + "]: race: "));
  CHECK_THAT(text.str(), Catch::Contains("fakegpu[" + std::to_string(allowed.pid()) + "]: race: "));
}

TEST_CASE("without a driver, with an old one and without a device the answers are those of the real runtime", "[devices]") {
  const auto facts = [](const std::string& faults, std::map<std::string, std::string> more = {}) {
    more.emplace("FAKEGPU_FAULTS", faults);
    Job job = process({"facts"}, more);
    CHECK(job.wait() == 0);
    return job.output();
  };
  CHECK(facts("") == "count 0, devices 1, driver 13000, malloc 0, last 0 0\n");
  CHECK(facts("", {{"FAKEGPU_DEVICES", "4"}, {"CUDA_VISIBLE_DEVICES", "3,1,4,0"}}) ==
        "count 0, devices 2, driver 13000, malloc 0, last 0 0\n");
  CHECK(facts("", {{"CUDA_VISIBLE_DEVICES", ""}}) == "count 100, devices -1, driver 13000, malloc 100, last 100 100\n");
  CHECK(facts("no_driver") == "count 35, devices -1, driver 0, malloc 35, last 35 35\n");  // as measured, without libcuda
  CHECK(facts("old_driver") == "count 35, devices -1, driver 12020, malloc 35, last 35 35\n");
  CHECK(facts("no_device") == "count 100, devices -1, driver 13000, malloc 100, last 100 100\n");
}

TEST_CASE("a variable that cannot be understood ends the process with 78", "[devices]") {
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"FAKEGPU_FAULTS", "mallok:1"}, {"FAKEGPU_FAULTS", "malloc"}, {"FAKEGPU_PROGRESS", "fast"}, {"FAKEGPU_DEVICES", "17"}}) {
    Job job = process({"facts"}, {{name, value}});
    CHECK(job.wait() == 78);
    CHECK_THAT(job.output(), Catch::Contains(name));
  }
}

TEST_CASE("memory and events of one process are used in another, and are gone with it", "[devices]") {
  for (const std::string progress : {"seeded", "eager"}) {
    INFO(progress);
    Job holder = process({"hold"}, {{"FAKEGPU_PROGRESS", progress}});
    const std::optional<std::string> line = holder.line("handles ");
    REQUIRE(line.has_value());
    std::istringstream words{*line};
    std::string word, memory, event;
    words >> word >> memory >> event;
    Job first = process({"open", memory, event});
    CHECK(first.wait() == 0);
    CHECK(first.output() == "read 43, imported 0\n");
    Job second = process({"open", memory, event});
    CHECK(second.wait() == 0);
    CHECK(second.output() == "read 44, imported 0\n");
    holder.signal(SIGKILL);
    holder.wait();
    Job late = process({"open", memory, event});
    CHECK(late.wait() == 0);
    CHECK_THAT(late.output(), Catch::Contains("not opened: cudaErrorMapBufferObjectFailed"));
  }
}

TEST_CASE("a program gets the fake devices by the path of its libelrun", "[devices]") {
  const std::string bin = program_path("gpt"), build = bin.substr(0, bin.rfind("/bin/"));
  Job job{{.arguments = {bin}, .environment = {{"LD_LIBRARY_PATH", build + "/lib/devices"}}, .program = "/usr/bin/ldd"}};
  CHECK(job.wait() == 0);
  CHECK_THAT(job.output(), Catch::Contains("/lib/devices/libelrun.so.0"));
  CHECK_THAT(job.output(), Catch::Contains("/tests/fakegpu/libcudart.so.13"));
  CHECK_THAT(job.output(), Catch::Contains("/tests/fakegpu/libelrun_kernel_twins.so"));
}
