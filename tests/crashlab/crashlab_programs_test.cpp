// The sample gpt on a storage that fails at one operation, and killed as a whole at any moment: whatever happened, a later run, of another world size, goes on
// from what was acknowledged, and ends in the state of a run that nothing happened to.

#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.hpp"
#include "tests/support/checkpoint_root.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;
namespace fs = std::filesystem;

namespace {

bool full() { return std::getenv("ELRUN_FULL") != nullptr; }

}  // namespace

TEST_CASE("a storage that fails at any operation, once or for good, loses nothing that was acknowledged", "[crashlab]") {
  const Folder folder;
  const std::string prepared = folder / "prepared", root = folder / "ck", count_file = folder / "count";
  constexpr unsigned steps = 30;
  const auto arguments = [&](const std::string& at, unsigned until) {
    return gpt_arguments(folder / "text", until, {"--every", "5", "--keep", "2", "--final-wait", "0", "--checkpoint", at});
  };
  const std::string undisturbed = run("gpt", gpt_arguments(folder / "text", steps)).state;
  REQUIRE_FALSE(undisturbed.empty());
  // The learning rate follows from the number of steps, so the first half is a run to the end that is killed.
  {
    const auto job = start("gpt", arguments(prepared, steps));
    REQUIRE(until(*job, "step=17 "));
    job->signal(SIGKILL);
    (void)finish(*job);
  }
  const std::uint64_t before = acknowledged(prepared);
  REQUIRE(before >= 15);
  const auto with_fault = [&](long at, int error, const char* how) {
    fs::remove_all(root);
    fs::copy(prepared, root, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return run("gpt", arguments(root, steps),
               {{"LD_PRELOAD", test_program_path("libelrun_failing_storage.so")},
                {"ELRUN_FAIL_BELOW", root},
                {"ELRUN_FAIL", std::to_string(at) + " " + std::to_string(error) + " " + how},
                {"ELRUN_FAIL_COUNT", count_file}});
  };
  unsigned cells = 0, stopped = 0;
  for (const int error : {EIO, ENOSPC}) {
    const Ended clean = with_fault(0, error, "once");
    INFO(clean.output);
    REQUIRE(clean.code == 0);
    REQUIRE(clean.state == undisturbed);
    long operations = 0;
    std::ifstream{count_file} >> operations;
    REQUIRE(operations > 50);
    const long each = full() ? 1 : operations / 6 + 1;
    for (const char* how : {"once", "always"})
      for (long at = 1 + (full() ? 0 : (error + cells) % each); at <= operations; at += each) {
        INFO("operation " << at << " of " << operations << " fails with " << std::strerror(error) << ", " << how);
        const Ended faulty = with_fault(at, error, how);
        INFO(faulty.output);
        REQUIRE((faulty.code >= 0 && faulty.code < 128));   // it does not die of it
        if (faulty.code != 0) CHECK(faulty.says("elrun"));  // and says what is wrong
        if (faulty.code == 0) CHECK(faulty.state == undisturbed);
        goes_on(root, std::max(before, acknowledged(root)));
        const Ended later = run("gpt", arguments(root, steps));
        INFO(later.output);
        CHECK(later.code == 0);
        CHECK(later.state == undisturbed);
        ++cells, stopped += faulty.code != 0;
      }
  }
  std::printf("crashlab: %u faults of the storage, %u of which ended the job; nothing lost\n", cells, stopped);
}

TEST_CASE("a job that is killed as a whole, again and again, goes on at any world size and ends in the same state", "[crashlab]") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: a PID namespace needs root");
    return;
  }
  if (run("/usr/bin/unshare", {"--fork", "--pid", "--kill-child", "/bin/true"}).code != 0) {
    WARN("SKIPPED: no PID namespace can be made here");
    return;
  }
  const Folder folder;
  constexpr unsigned steps = 200;
  const std::string undisturbed = run("gpt", gpt_arguments(folder / "text", steps)).state;
  REQUIRE_FALSE(undisturbed.empty());
  const unsigned kills = full() ? 200 : 10;
  unsigned killed = 0, with_checkpoint = 0, ended = 0;
  for (std::uint64_t seed = 1; killed < kills || (with_checkpoint == 0 && seed < 30); ++seed) {
    Rng rng{seed};
    INFO("seed " << seed);
    const std::string root = folder / ("ck" + std::to_string(seed));
    const std::vector<std::string> zero{"0", "1", "2", "3", "hybrid2", "hybrid3", "mirrored1", "mirrored2", "mirrored3"};
    const auto job_of = [&](std::uint64_t world) {
      std::vector<std::string> words =
          under_elrun({"--nproc_per_node", std::to_string(world)},
                      gpt_arguments(folder / "text", steps,
                                    {"--every", "2", "--keep", "2", "--checkpoint", root, "--zero", zero[rng.below(zero.size())]}));
      words.insert(words.begin(), {"--fork", "--pid", "--kill-child", program_path("elrun")});
      return start("/usr/bin/unshare", words, {{"XDG_RUNTIME_DIR", folder / "run"}});
    };
    fs::create_directories(folder / "run");
    for (unsigned i = 0; i < 5; ++i) {
      const auto job = job_of(1 + rng.below(full() ? 6 : 4));
      listen(*job, Wait{50 + static_cast<int>(rng.below(1200))});
      job->signal(SIGKILL);
      const Ended end = finish(*job);
      INFO(end.output);
      CHECK((end.code == 137 || end.code == 0));
      killed += end.code == 137;
      with_checkpoint += end.code == 137 && acknowledged(root) > 0;
      goes_on(root, acknowledged(root));
      if (end.code == 0) break;
    }
    const Ended last = finish(*job_of(1 + rng.below(full() ? 6 : 4)));
    INFO(last.output);
    CHECK(last.code == 0);
    CHECK(last.state == undisturbed);
    ++ended;
    fs::remove_all(root);
  }
  CHECK(with_checkpoint > 0);  // else each began anew, and nothing was shown
  std::printf("crashlab: %u kills of all processes in %u jobs, %u of them after a checkpoint; all ended in the same state\n", killed, ended,
              with_checkpoint);
}
