// A program that asks for a device which it cannot have ends with 78 and a sentence; one that asks for the CPU runs.

#include "lib/device/facts.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/digits.hpp"
#include "tests/support/gpt_job.hpp"

using namespace elrun::test;

namespace {

constexpr Wait patience{60000};

Job::Setting training(const Folder& folder, const std::string& device) {
  return {.arguments = gpt_arguments(folder / "text", 1), .environment = {{"ELRUN_DEVICE", device}}, .program = "gpt"};
}

}  // namespace

TEST_CASE("ELRUN_DEVICE=cuda without a device is refused with 78 and what is the matter", "[device]") {
  const elrun::DeviceFacts facts = elrun::device_facts();
  if (facts.count > 0) return;  // gpt takes one; tests on fake devices have what is refused there
  const Folder folder;
  const TemporaryDirectory images;
  write_digits(images.path(), "t10k", 15, 1);
  for (const Job::Setting& setting : {training(folder, "cuda"), Job::Setting{.arguments = {"--data_path", images.path(), "--steps", "1"},
                                                                .environment = {{"ELRUN_DEVICE", "cuda"}},
                                                                .program = "mnist"}}) {
    Job job{setting};
    CHECK(job.wait(patience) == 78);
    INFO(setting.program << '\n' << job.output());
    CHECK(job.says("ELRUN_DEVICE=cuda"));
    if (!facts.built_with_cuda) CHECK(job.says("built without CUDA"));
    else if (facts.failed && facts.failed->driver_version == 0) CHECK(job.says("there is no NVIDIA driver here"));
  }
}

TEST_CASE("a word that ELRUN_DEVICE does not know is refused with 78", "[device]") {
  const Folder folder;
  Job job{training(folder, "gpu")};
  CHECK(job.wait(patience) == 78);
  CHECK(job.says("ELRUN_DEVICE=gpu"));
  CHECK(job.says("cpu, cuda and cuda:N"));
}

TEST_CASE("ELRUN_DEVICE=cpu and an empty one train on the host", "[device]") {
  const Folder folder;
  for (const char* word : {"cpu", ""}) {
    Job job{training(folder, word)};
    CHECK(job.wait(patience) == 0);
    INFO(job.output());
    CHECK(job.says("done"));
  }
}
