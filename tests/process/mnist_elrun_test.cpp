// The mnist sample with real processes: one state and one accuracy, whatever the number of workers and whoever dies.

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/digits.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/property.hpp"

using namespace elrun::test;
using elrun::Rng;

namespace {

// After 12 steps on the images of seed 1. It moves when the arithmetic moves, and then `numeric` of the sample moves too.
constexpr const char* golden = " accuracy=0.3500 (21 of 60) state=b1d0f205d64451e7";

#if defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

/// A directory with 300 images, of which 240 are trained on.
struct Images {
  TemporaryDirectory directory;
  Images() { write_digits(directory.path(), "t10k", 300, 1); }
  [[nodiscard]] std::string operator/(const std::string& name) const { return directory.path() + "/" + name; }
  [[nodiscard]] std::vector<std::string> arguments(unsigned steps, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all{"--data_path", directory.path(),      "--global_batch", "4",    "--micro_batch", "1",
                                 "--steps",     std::to_string(steps), "--test_every",   "1000", "--seed",        "7"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

std::vector<std::string> mnist_under_elrun(std::vector<std::string> options, const std::vector<std::string>& mnist) {
  options.insert(options.end(), {"--no_python", program_path("mnist")});
  options.insert(options.end(), mnist.begin(), mnist.end());
  return options;
}

/// What a job says at its end: "accuracy=0.9812 (157 of 160)", and the state.
std::string result_of(const Ended& ended) {
  const auto done = ended.output.rfind("\ndone "), at = ended.output.find(" accuracy=", done);
  return done == std::string::npos || at == std::string::npos ? "" : ended.output.substr(at, ended.output.find('\n', at) - at);
}

std::string tail(const std::string& text) { return text.substr(text.size() > 6000 ? text.size() - 6000 : 0); }

/// The numbers of the steps in a log, in its order.
std::vector<std::uint64_t> steps_in(const std::string& path) {
  std::vector<std::uint64_t> out;
  std::ifstream in{path};
  for (std::string line; std::getline(in, line);) {
    CHECK(line.starts_with("{\"step\":"));
    CHECK(line.ends_with("}"));
    out.push_back(std::stoull(line.substr(8)));
  }
  return out;
}

std::vector<std::uint64_t> up_to_step(std::uint64_t last) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t s = 1; s <= last; ++s) out.push_back(s);
  return out;
}

}  // namespace

TEST_CASE("any number of workers and threads ends in the golden state, with the same accuracy", "[golden]") {
  const Images images;
  const Ended bare = run("mnist", images.arguments(12), {{"OMP_NUM_THREADS", "1"}});
  INFO(bare.output);
  REQUIRE(bare.code == 0);
  CHECK(result_of(bare) == golden);
  for (const char* workers : {"1", "2", "3"}) {
    const std::string log = images / (std::string{"log"} + workers);
    const Ended ended = run("elrun", mnist_under_elrun({"--nproc_per_node", workers}, images.arguments(12, {"--log_path", log})),
                            {{"OMP_NUM_THREADS", *workers == '2' ? "2" : "1"}});
    INFO(workers << " workers\n" << ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.says("world=" + std::string{workers} + " "));
    CHECK(result_of(ended) == golden);
    CHECK(steps_in(log) == up_to_step(12));
  }
}

TEST_CASE("workers killed at any time: the same state, the same accuracy, and each step once in the log", "[golden]") {
  const Images images;
  constexpr unsigned steps = sanitized ? 40 : 200;
  const Ended bare = run("mnist", images.arguments(steps));
  INFO(bare.output);
  REQUIRE(bare.code == 0);
  for_all_seeds(2, [&](Rng& rng) {
    const TemporaryDirectory folder;
    const std::string workers = std::to_string(2 + rng.below(3)), log = folder.path() + "/log";
    const auto job = start_held({"--nproc_per_node", workers, "--max_restarts", "5"}, "mnist",
                                images.arguments(steps, {"--every", "10", "--checkpoint_path", folder.path() + "/ck", "--log_path", log}));
    REQUIRE(until(*job, "step=" + std::to_string(1 + rng.below(steps / 4)) + " "));
    let_pass(Wait{rng.below(150)});  // any time: within a step, or a save
    const auto living = job->children_named("mnist");
    REQUIRE_FALSE(living.empty());
    REQUIRE(::kill(living[rng.below(living.size())], SIGKILL) == 0);
    const Ended ended = finish(*job);
    INFO(workers << " workers\n" << tail(ended.output));
    CHECK(ended.code == 0);
    CHECK((ended.says("generation=2") ||
           ended.says("generation=3")));  // the killed worker's successor may be ready before the second one's first step
    CHECK(result_of(ended) == result_of(bare));
    CHECK(steps_in(log) == up_to_step(steps));
  });
}

TEST_CASE("what is wrong with data, flags or log is told, with the exit codes of a program", "[bad-input]") {
  const Images images;
  const Ended missing = run("mnist", {"--data_path", images / "nothing"});
  INFO(missing.output);
  CHECK(missing.code == 66);
  CHECK(missing.says("nothing/t10k-images-idx3-ubyte"));
  const Ended usage = run("mnist", {"--data", images / "nothing", "--steps", "x"});
  CHECK(usage.code == 64);
  CHECK(usage.says("'--data' is no option of mnist"));
  const Ended log = run("mnist", images.arguments(2, {"--log_path", images / "missing/log"}));
  CHECK(log.code == 78);
  CHECK(log.says("--log_path '" + (images / "missing/log") + "' cannot be opened"));
}

TEST_CASE("trained on 8,000 real images, at least 97 of 100 others are told right", "[golden]") {
  const std::string data = source_path("../shared/data/mnist");
  if (!std::filesystem::exists(data)) {
    std::puts("SKIPPED: ../shared/data/mnist is not there");
    return;
  }
  if (sanitized) {
    std::puts("SKIPPED: minutes of arithmetic under this sanitizer, through which the made images go as well");
    return;
  }
  const std::vector<std::string> arguments{"--data_path", data, "--epochs", "2"};
  const auto trained = [&](const std::unique_ptr<Job>& job) {
    Ended ended;
    ended.code = job->wait(Wait{600000});
    ended.output = job->output();
    INFO(tail(ended.output));
    CHECK(ended.code == 0);
    return result_of(ended);
  };
  const std::string result = trained(start("mnist", arguments));
  CAPTURE(result);
  const auto at = result.find("accuracy=");
  REQUIRE(at != std::string::npos);
  CHECK(std::stod(result.substr(at + 9)) >= 0.97);
  CHECK(result.find(" of 2000)") != std::string::npos);
  if (std::getenv("ELRUN_FULL") == nullptr) return;
  for (const char* workers : {"2", "3", "4"}) {  // the same accuracy to the last digit, with workers killed at any time
    Rng rng{static_cast<std::uint64_t>(*workers)};
    const TemporaryDirectory folder;
    std::vector<std::string> killed = arguments;
    killed.insert(killed.end(), {"--every", "25", "--checkpoint_path", folder.path() + "/ck"});
    const auto job = start("elrun", mnist_under_elrun({"--nproc_per_node", workers, "--max_restarts", "5"}, killed));
    for (const unsigned from : {20u, 90u, 160u}) {
      REQUIRE(job->line("step=" + std::to_string(from + rng.below(60)) + " ", Wait{300000}).has_value());
      listen(*job, Wait{rng.below(300)});
      const auto living = job->children_named("mnist");
      REQUIRE_FALSE(living.empty());
      REQUIRE(::kill(living[rng.below(living.size())], SIGKILL) == 0);
    }
    INFO(workers << " workers");
    CHECK(trained(job) == result);
  }
}
