// What looks at a worker that hangs never delays its end. Real debuggers, and one that never lets go.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

namespace fs = std::filesystem;
constexpr Wait patience{60000};  // only a failing test waits for so long

std::size_t reported_times(const std::string& output, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = output.find(text, at)) != std::string::npos; at += text.size()) ++count;
  return count;
}

// A PATH on which gdb is the debugger that never lets go, and leaves a line in `calls` each time.
struct HoldingGdb {
  HoldingGdb() {
    const std::string gdb = folder.path() + "/gdb";
    std::ofstream{gdb} << "#!/bin/sh\necho \"$@\" >>" << calls() << "\nexec /usr/bin/python3 "
                       << source_path("tests/process/programs/holding_debugger.py") << " \"$@\"\n";
    fs::permissions(gdb, fs::perms::owner_all);
  }
  [[nodiscard]] std::string calls() const { return folder.path() + "/calls"; }
  [[nodiscard]] bool was_called() const { return fs::exists(calls()); }
  [[nodiscard]] std::map<std::string, std::string> environment() const {
    return {{"PATH", folder.path() + ":/usr/bin:/bin"}, {"TMPDIR", folder.path()}};
  }
  TemporaryDirectory folder;
};

const std::vector<std::string> by_output{"--hang_timeout", "5", "--hang_on", "output", "--tee", "3"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

TEST_CASE("a debugger that never lets go of hung workers ends with them, and holds up nobody", "[hang]") {
  const HoldingGdb gdb;
  Job job{{.arguments = with(by_output, {"--nproc_per_node", "2", "--no_python", "/bin/sh", "-c", "while :; do sleep 1; done"}),
           .environment = gdb.environment()}};
  REQUIRE(job.line("this is a hang", patience));
  const auto began = std::chrono::steady_clock::now();
  CHECK(job.wait(patience) == 174);
  // 5 s for the tools, 2 s for SIGABRT: what is more is this machine's load.
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds{20});
  CHECK(gdb.was_called());
  CHECK(job.says("was not done after"));
  INFO(job.output());
  CHECK(reported_times(job.output(), "stacks of worker ") == 2);
}

TEST_CASE("a tool that floods its output is cut off, and eight workers end as soon as one", "[hang]") {
  const TemporaryDirectory folder;
  std::ofstream{folder.path() + "/gdb"} << "#!/bin/sh\nexec yes\n";
  fs::permissions(folder.path() + "/gdb", fs::perms::owner_all);
  Job job{{.arguments = with(by_output, {"--nproc_per_node", "8", "--no_python", "/bin/sleep", "1000"}),
           .environment = {{"PATH", folder.path() + ":/usr/bin:/bin"}, {"XDG_RUNTIME_DIR", folder.path()}, {"TMPDIR", folder.path()}}}};
  REQUIRE(job.line("this is a hang", patience));
  const auto began = std::chrono::steady_clock::now();
  CHECK(job.wait(patience) == 174);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds{20});
  CHECK(job.says("stacks of worker 0"));
  CHECK(job.output().size() < std::size_t{4} << 20);
}

TEST_CASE("a folder on PATH that does not answer holds up no end of a hung worker", "[hang]") {
  const TemporaryDirectory folder, runtime;
  Job job{{.arguments = with({source_path("tests/process/programs/hanging_folder.py"), folder.path(), program_path("elrun")},
                             with(by_output, {"--no_python", "/bin/sleep", "1000"})),
           .environment = {{"PATH", folder.path() + ":/usr/bin:/bin"}, {"XDG_RUNTIME_DIR", runtime.path()}, {"TMPDIR", runtime.path()}},
           .program = "/usr/bin/python3"}};
  const int code = job.wait(patience);
  INFO(job.output());
  if (job.says("SKIPPED")) return;
  CHECK(code == 174);
  CHECK(job.says("this is a hang"));
}

TEST_CASE("folders on PATH that do not answer hide no debugger of the system, and delay no start without --hang_timeout", "[hang]") {
  const TemporaryDirectory folder, runtime;
  std::string path;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) path += folder.path() + "/" + name + ":";
  const auto started = [&](const std::vector<std::string>& options) {
    return std::make_unique<Job>(Job::Setting{
        .arguments = with({source_path("tests/process/programs/hanging_folder.py"), folder.path(), program_path("elrun")}, options),
        .environment = {{"PATH", path + "/usr/bin:/bin"}, {"XDG_RUNTIME_DIR", runtime.path()}, {"TMPDIR", runtime.path()}},
        .program = "/usr/bin/python3"});
  };
  SECTION("with it") {
    const auto job = started(with(by_output, {"--no_python", "/bin/sleep", "1000"}));
    const int code = job->wait(patience);
    INFO(job->output());
    if (job->says("SKIPPED")) return;
    CHECK(code == 174);
    if (fs::exists("/usr/bin/gdb") || fs::exists("/usr/bin/eu-stack"))
      CHECK(job->says("stacks of worker 0 of this node"));  // which looks at PATH itself, and hangs
    else CHECK(job->says("/e did not answer when this agent began, and " + folder.path() + "/f were not looked at after that"));
  }
  SECTION("without it") {  // where each thread of the agent waits in the kernel
    const auto job = started({"--no_python", "/bin/sh", "-c", "/bin/cat /proc/$PPID/task/*/wchan"});
    const int code = job->wait(patience);
    INFO(job->output());
    if (job->says("SKIPPED")) return;
    CHECK(code == 0);
    CHECK_FALSE(job->says("fuse_"));
  }
}

TEST_CASE("Python tells its own stacks, and no debugger stops it before that", "[hang]") {
  const HoldingGdb gdb;
  const std::vector<std::string> sleeps{"-m", "timeit", "-n", "1", "-r", "1", "import time; time.sleep(1000)"};
  SECTION("while it runs") {
    Job job{{.arguments = with(by_output, sleeps), .environment = gdb.environment()}};
    CHECK(job.wait(patience) == 174);
    CHECK(job.says("most recent call first"));
    CHECK(job.says("timeit.py"));
  }
  SECTION("while it is stopped") {
    Job job{
        {.arguments = with(by_output, {"-m", "timeit", "-n", "1", "-r", "1", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"}),
         .environment = gdb.environment()}};
    CHECK(job.wait(patience) == 174);
    CHECK(job.says("most recent call first"));
  }
  CHECK_FALSE(gdb.was_called());
}

TEST_CASE("a dead worker that a person's debugger holds is told, with the debugger, and its end is known when that lets go", "[hang]") {
  const TemporaryDirectory here;
  const std::string file = here.path() + "/pid";
  Job job{{.arguments = {"--no_python", "/bin/sh", "-c",
                         "echo $$$$ >" + file + ".new; mv " + file + ".new " + file + "; echo started; exec sleep 1000"}}};
  REQUIRE(job.line("started", patience));
  pid_t worker = 0;
  std::ifstream{file} >> worker;
  REQUIRE(worker > 1);
  auto debugger = std::make_unique<Job>(
      Job::Setting{.arguments = {source_path("tests/process/programs/holding_debugger.py"), "-p", std::to_string(worker)},
                   .program = "/usr/bin/python3"});
  const auto attached = debugger->line("attach: ", patience);
  REQUIRE(attached);
  if (attached->find("refused") != std::string::npos) {
    std::printf("SKIPPED: this user may not trace processes (kernel.yama.ptrace_scope)\n");
    return;
  }
  REQUIRE(::kill(worker, SIGKILL) == 0);
  CHECK(job.line("has ended, but process " + std::to_string(debugger->pid()) + " (a debugger?) is attached to it", patience));
  debugger.reset();
  CHECK(job.wait(patience) == 128 + SIGKILL);
}

TEST_CASE("a worker that prints is no hang where no pipe was left for its output", "[hang]") {
  const TemporaryDirectory folder;
  const std::string preloaded = test_program_path("libelrun_failing_storage.so");
  if (!fs::exists(preloaded)) {
    std::printf("SKIPPED: %s is not built\n", preloaded.c_str());
    return;
  }
  Job job{{.arguments = {"--hang_timeout", "1", "--hang_on", "output", "--tee", "3", "--log_dir", folder.path(), "--no_python", "/bin/sh",
                         "-c", "n=0; while [ $n -lt 25 ]; do n=$((n+1)); echo line $n; sleep 0.1; done"},
           .environment = {{"LD_PRELOAD", preloaded}, {"ELRUN_FAIL_PIPES", "2"}}}};
  CHECK(job.wait(patience) == 0);
  INFO(job.output());
  CHECK(job.says("elrun does not see this output"));
  CHECK(job.says("line 25"));
  CHECK_FALSE(job.says("a hang"));
}

TEST_CASE("a real debugger shows the stack of a program that hangs", "[hang]") {
  if (!fs::exists("/usr/bin/gdb")) {
    std::printf("SKIPPED: no gdb\n");
    return;
  }
  const TemporaryDirectory folder;
  Job job{{.arguments = with(by_output, {"--no_python", "/bin/sleep", "1000"}),
           .environment = {{"PATH", "/usr/bin:/bin"}, {"TMPDIR", folder.path()}}}};
  CHECK(job.wait(patience) == 174);
  INFO(job.output());
  CHECK((job.says("nanosleep") || job.says("was not done after")));
}

}  // namespace elrun::test
