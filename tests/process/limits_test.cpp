// A limit of the container that is reached is named: by a worker's failure report, and where a worker cannot be started at all. So is a kernel that is
// too old for elrun.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace {

namespace fs = std::filesystem;

/// A control group with a limit of processes and threads; it goes with the test.
class PidsGroup {
 public:
  static std::optional<PidsGroup> create(int limit) {
    const std::string name = "elrun-test-" + std::to_string(::getpid());
    for (const fs::path root : {"/sys/fs/cgroup/pids", "/sys/fs/cgroup"}) {
      std::error_code error;
      const fs::path folder = root / name;
      if (!fs::create_directory(folder, error)) continue;
      if (fs::exists(folder / "pids.max", error) && std::ofstream{folder / "pids.max"} << limit << std::flush) return PidsGroup{folder};
      fs::remove(folder, error);
    }
    std::printf("SKIPPED: this machine allows no control group of its own for processes\n");
    return std::nullopt;
  }
  PidsGroup(PidsGroup&& other) noexcept : folder_{std::move(other.folder_)} { other.folder_.clear(); }
  PidsGroup& operator=(PidsGroup&&) = delete;
  ~PidsGroup() {
    std::error_code error;
    if (!folder_.empty()) fs::remove(folder_, error);
  }
  /// `elrun --no_python /bin/sh -c SCRIPT` in it, to its end.
  [[nodiscard]] Ended run(const std::string& options, const std::string& script, const TemporaryDirectory& directory) const {
    return elrun::test::run("/bin/sh",
                            {"-c", "echo $$ > " + (folder_ / "cgroup.procs").string() + " && exec " + program_path("elrun") + " " +
                                       options + " --no_python /bin/sh -c '" + script + "'"},
                            {{"XDG_RUNTIME_DIR", directory.path()}});
  }

 private:
  explicit PidsGroup(fs::path folder) : folder_{std::move(folder)} {}
  fs::path folder_;
};

const std::string no_filter = "refusing_kernel: seccomp";

}  // namespace

TEST_CASE("a worker whose processes are refused by pids.max fails with that in its report", "[limits][process]") {
  const TemporaryDirectory directory;
  const auto group = PidsGroup::create(24);
  if (!group) return;
  const Ended ended = group->run("", "n=0; while [ $n -lt 40 ]; do sleep 60 & n=$((n+1)); done; exit 0", directory);
  INFO(ended.output);
  CHECK(ended.code != 0);
  CHECK(ended.says("processes or threads were refused: "));
  CHECK(ended.says("the limit is 24; raise pids.max"));
}

TEST_CASE("a worker that cannot be started for pids.max has that as its reason", "[limits][process]") {
  const TemporaryDirectory directory;
  const auto group = PidsGroup::create(24);
  if (!group) return;
  const Ended ended = group->run("--nproc_per_node 40", "sleep 60", directory);
  INFO(ended.output);
  CHECK(ended.code != 0);
  CHECK(ended.says("pids.max of this container is 24, and "));
}

TEST_CASE("on a kernel without pidfd_open no worker starts, and the doctor says why", "[limits][process]") {
  const TemporaryDirectory directory;
  const std::map<std::string, std::string> environment{{"XDG_RUNTIME_DIR", directory.path()}};
  const std::string kernel = test_program_path("refusing_kernel"), elrun = program_path("elrun");
  const Ended started =
      elrun::test::run(kernel, {"pidfd_open", elrun, "--nproc_per_node", "2", "--no_python", "/bin/sh", "-c", "echo it runs"}, environment);
  INFO(started.output);
  if (started.says(no_filter)) {
    std::printf("SKIPPED: no filter of system calls can be set here\n");
    return;
  }
  CHECK(started.code == 70);
  CHECK(started.says("refuses pidfd_open (Function not implemented)"));
  CHECK(started.says("elrun needs Linux 5.3"));
  CHECK_FALSE(started.says("it runs"));
  const Ended asked = elrun::test::run(kernel, {"pidfd_open", elrun, "doctor", "--no_python", "/bin/sh"}, environment);
  INFO(asked.output);
  CHECK(asked.code == 78);
  CHECK(asked.says("FAIL  kernel"));
}

TEST_CASE("where a sandbox refuses threads nothing starts, and the start, the store and the doctor name clone3", "[limits][process]") {
  const TemporaryDirectory directory;
  const std::string kernel = test_program_path("refusing_kernel"), elrun = program_path("elrun");
  const auto asked = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"clone3_not_permitted", elrun});
    return elrun::test::run(kernel, words, {{"XDG_RUNTIME_DIR", directory.path()}});
  };
  const std::string cause = "no thread could be started: a sandbox refuses clone3 with EPERM; let its seccomp profile answer ENOSYS";
  const Ended started = asked({"--nproc_per_node", "2", "--no_python", "/bin/sh", "-c", "echo it runs"});
  INFO(started.output);
  if (started.says(no_filter)) {
    std::printf("SKIPPED: no filter of system calls can be set here\n");
    return;
  }
  CHECK(started.code == 70);
  CHECK(started.says(cause));
  CHECK_FALSE(started.says("it runs"));
  const Ended store = asked({"store", "--host", "127.0.0.1", "--port", "0"});
  INFO(store.output);
  CHECK(store.code == 70);
  CHECK(store.says(cause));
  const Ended doctor = asked({"doctor", "--no_python", "/bin/sh"});
  INFO(doctor.output);
  CHECK(doctor.code == 78);
  CHECK(doctor.says("FAIL  threads    " + cause));
}

TEST_CASE("the doctor looks at files where no thread can be started, too", "[limits][process]") {
  const TemporaryDirectory directory;
  const Ended asked = elrun::test::run(test_program_path("refusing_kernel"),
                                       {"clone3", program_path("elrun"), "doctor", "--log_dir", directory.path(), "--no_python", "/bin/sh"},
                                       {{"XDG_RUNTIME_DIR", directory.path()}});
  INFO(asked.output);
  if (asked.says(no_filter)) {
    std::printf("SKIPPED: no filter of system calls can be set here\n");
    return;
  }
  CHECK(asked.says("ok    logs       " + directory.path() + " can be written"));
}

TEST_CASE("the doctor says where a directory for checkpoints has no hard links", "[limits][process]") {
  const TemporaryDirectory directory;
  const Ended asked =
      elrun::test::run(test_program_path("refusing_kernel"),
                       {"link", program_path("elrun"), "doctor", "--checkpoint_root", directory.path(), "--no_python", "/bin/sh"},
                       {{"XDG_RUNTIME_DIR", directory.path()}});
  INFO(asked.output);
  if (asked.says(no_filter)) {
    std::printf("SKIPPED: no filter of system calls can be set here\n");
    return;
  }
  CHECK(asked.code == 78);
  CHECK(asked.says("FAIL  checkpoint " + directory.path()));
  CHECK(asked.says("make a hard link in it, as checkpoints need: Operation not supported"));
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("where there is no /proc the start and the doctor say that no save is asynchronous", "[limits][process]") {
  const TemporaryDirectory directory;
  const auto without_proc = [&](const std::string& command) {
    return elrun::test::run("/usr/bin/unshare",
                            {"-r", "-m", "/bin/sh", "-c",
                             "mount -t tmpfs none /proc || { echo no mount; exit; }; exec " + program_path("elrun") + " " + command},
                            {{"XDG_RUNTIME_DIR", directory.path()}});
  };
  const Ended started = without_proc("--no_python /bin/echo it runs");
  INFO(started.output);
  if (started.says("no mount") || started.says("unshare: ")) {
    std::printf("SKIPPED: nothing can be mounted here\n");
    return;
  }
  CHECK(started.says("it runs"));
  CHECK(started.says("the job is done"));  // not its code: where leaks are looked for, the end of a process without /proc is an error
  CHECK(started.says("no checkpoint can be saved asynchronously: not_found: there is no /proc, by way of which elrun ckptd is executed"));
  const Ended doctor = without_proc("doctor --no_python /bin/sh");
  INFO(doctor.output);
  CHECK(doctor.says("warn  proc       there is no /proc: every save of a checkpoint blocks"));
}
