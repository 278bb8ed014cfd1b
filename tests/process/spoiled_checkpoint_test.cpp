// A job whose state was spoiled before it was saved: real launchers and workers, and a program that fails whenever it goes on from that checkpoint.
#include <csignal>
#include <filesystem>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace elrun::test::spoiled_checkpoint {
namespace {

struct Ended {
  int code = -1;
  std::string output;
  [[nodiscard]] bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

Job::Setting setting(const TemporaryDirectory& folder, const std::string& workers, const std::string& restarts, const std::string& how,
                     const std::string& every = "10") {
  return {.arguments = {"--nproc_per_node", workers, "--max_restarts", restarts, "--no_python", test_program_path("spoiled_worker"),
                        folder.path(), how, every}};
}

Ended run(const Job::Setting& setting) {
  Job job{setting};
  const int code = job.wait();
  return {code, job.output()};
}

constexpr const char* passed_over = "checkpoint s000000000020.g00000001.a01 is whole, but passed over: generations ";

}  // namespace

TEST_CASE("a checkpoint after which the job failed the same way twice is passed over, said, and kept", "[spoiled]") {
  const TemporaryDirectory folder;
  const std::string workers = GENERATE("1", "2"), how = workers == "1" ? "exit" : "abort";
  // Of two workers that abort, one may be seen so much earlier that the other goes on in the next generation, and dies in that, or when growth has ended it.
  const Ended ended = run(setting(folder, workers, workers == "1" ? "2" : "6", how));
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.says("done step=30 spoiled=0"));
  CHECK(ended.says(passed_over));
  CHECK(ended.says(" went on from it, and in both "));
  CHECK(ended.says(how == "exit" ? "ended by exit code 3 after step 2" : "ended by signal 6 (SIGABRT) after step 2"));
  if (workers == "1") {  // each start is a new process, whose program hears of it
    CHECK(ended.says("restored step=10 " + folder.path() + "/ck/ckpt/s000000000010.g00000001.a01: a newer one is passed over"));
    CHECK(ended.says(std::string{"restored: "} + passed_over + "2 and 3 went on from it"));
  }
  CHECK(std::filesystem::exists(folder.path() + "/ck/ckpt/s000000000020.g00000001.a01/COMMIT"));
}

TEST_CASE("a worker that is killed from outside says nothing of the checkpoint: it is gone on from until the restarts are used up",
          "[spoiled]") {
  const TemporaryDirectory folder;
  const Ended ended = run(setting(folder, "1", "2", "kill"));
  INFO(ended.output);
  CHECK(ended.code == 128 + SIGKILL);
  CHECK_FALSE(ended.says("passed over"));
  CHECK(ended.says("fence 4: going on from checkpoint s000000000020.g00000001.a01"));
  CHECK(ended.says("went on at: step 20, from " + folder.path() + "/ck/ckpt/s000000000020.g00000001.a01 (the newest checkpoint)"));
}

TEST_CASE("a suspect that is the only checkpoint is gone on from once more, with a line; the report has it", "[spoiled]") {
  const TemporaryDirectory folder;
  const Ended ended = run(setting(folder, "1", "2", "exit", "20"));
  INFO(ended.output);
  CHECK(ended.code == 3);
  CHECK(ended.says(
      "s000000000020.g00000001.a01 is suspect, but no older one is whole, so the job goes on from it once more: generations 2 and 3"));
  CHECK(ended.says("fence 4: going on from checkpoint s000000000020.g00000001.a01"));
  const auto report = ended.output.find("the job failed, exit code 3");
  REQUIRE(report != std::string::npos);
  CHECK(ended.output.find("no older one is whole", report) != std::string::npos);
}

}  // namespace elrun::test::spoiled_checkpoint
