// A worker that died is started beside the world, which goes on without it: with real processes, whose test says when each goes on.

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/base/fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;

namespace {

constexpr Wait patience{120000};

class Held {
 public:
  /// `first`: what each worker's shell does before it becomes the program.
  explicit Held(const std::string& restarts = "3", const std::string& first = ":")
      : job_{{.arguments = {"--nproc_per_node", "4", "--max_restarts", restarts, "--no_python", "/bin/sh", "-c",
                            first + "\nexec \"$0\" \"$1\"", test_program_path("holding_worker"), folder_.path()},
              .environment = {{"XDG_RUNTIME_DIR", runtime_.path()}}}} {}
  void go_on(const std::string& file) const { std::ofstream{folder_.path() + "/" + file}; }
  [[nodiscard]] bool until(const std::string& text) {
    INFO(job_.output());
    return job_.line(text, patience).has_value();
  }
  /// The same of what nothing orders behind the line that was waited for last.
  [[nodiscard]] bool has_said(const std::string& text) { return job_.says(text) || until(text); }
  [[nodiscard]] std::vector<pid_t> workers() const { return job_.children_named("holding_worker"); }
  [[nodiscard]] std::vector<pid_t> all_hold() {
    REQUIRE(until("holds at 10"));
    const std::vector<pid_t> all = workers();
    REQUIRE(all.size() == 4);
    return all;
  }
  /// All four hold at step 10: kills the second, and waits until the others go on and its successor starts.
  [[nodiscard]] std::vector<pid_t> lose_one() {
    const std::vector<pid_t> before = all_hold();
    REQUIRE(::kill(before[1], SIGKILL) == 0);
    REQUIRE(until("generation 2: 1 node, 3 workers, 3 go on here in the same process"));
    std::vector<pid_t> left = before;
    left.erase(left.begin() + 1);
    return left;
  }
  [[nodiscard]] std::string state_at_end() {
    const int code = job_.wait(patience);
    const std::string& said = job_.output();
    INFO(said);
    CHECK(code == 0);
    const auto at = said.find("done state=");
    REQUIRE(at != said.npos);
    return said.substr(at, said.find('\n', at) - at);
  }
  [[nodiscard]] bool says(const std::string& text) const { return job_.says(text); }
  [[nodiscard]] const std::string& output() { return job_.output(); }
  [[nodiscard]] int asked_to_end() {
    job_.signal(SIGTERM);
    return job_.wait(patience);
  }
  /// Of the agent.
  [[nodiscard]] std::filesystem::path death_futexes() const {
    return std::filesystem::directory_iterator { runtime_.path() } -> path() / "exit-words";
  }

 private:
  TemporaryDirectory folder_, runtime_;
  Job job_;
};

/// A debugger, which keeps a process from being told dead, as the kernel does until it has freed its memory and devices.
class Debugger {
 public:
  explicit Debugger(pid_t pid) : pid_{pid}, is_attached_{::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0} {
    if (!is_attached_) std::puts("SKIPPED: this system lets nobody attach to another process");
  }
  ~Debugger() { let_go(); }
  Debugger(const Debugger&) = delete;
  Debugger& operator=(const Debugger&) = delete;
  [[nodiscard]] bool is_attached() const { return is_attached_; }
  /// Of the dead process.
  void let_go() {
    if (std::exchange(is_attached_, false)) ::waitpid(pid_, nullptr, __WALL);
  }

 private:
  pid_t pid_;
  bool is_attached_;
};

/// The same for one thread of a process, which stops as it ends: its memory and what it has started stay the process's.
class ThreadDebugger {
 public:
  explicit ThreadDebugger(pid_t thread) : thread_{thread} {
    is_attached_ = ::ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACEEXIT) == 0;
    if (!is_attached_) std::puts("SKIPPED: this system lets nobody attach to another process");
  }
  ~ThreadDebugger() { let_go(); }
  ThreadDebugger(const ThreadDebugger&) = delete;
  ThreadDebugger& operator=(const ThreadDebugger&) = delete;
  [[nodiscard]] bool is_attached() const { return is_attached_; }
  void let_go() {
    if (!std::exchange(is_attached_, false)) return;
    ::waitpid(thread_, nullptr, __WALL);
    ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
  }

 private:
  pid_t thread_;
  bool is_attached_ = false;
};

/// Of a run of one process to which nothing happens.
const std::string& undisturbed() {
  static const std::string state = [] {
    const TemporaryDirectory folder;
    for (const char* file : {"/ten", "/twenty"}) std::ofstream{folder.path() + file};
    Job alone{{.arguments = {folder.path()}, .program = test_program_path("holding_worker")}};
    REQUIRE(alone.wait(patience) == 0);
    const auto at = alone.output().find("done state=");
    REQUIRE(at != std::string::npos);
    return alone.output().substr(at, alone.output().find('\n', at) - at);
  }();
  return state;
}

}  // namespace

TEST_CASE("three of four workers go on while the fourth is started again, and take it in when it is ready", "[pending]") {
  Held job;
  const std::vector<pid_t> survivors = job.lose_one();
  CHECK(job.says("1 worker is being started here, and joins when it is ready"));
  job.go_on("ten");
  REQUIRE(job.until("step=19 world=3 "));
  CHECK_FALSE(job.says("generation 3:"));
  job.go_on("start");
  REQUIRE(job.until("generation 3: 1 node, 4 workers, 3 go on here in the same process, 1 that was started meanwhile joins"));
  const std::vector<pid_t> now = job.workers();
  CHECK(now.size() == 4);
  for (const pid_t pid : survivors) CHECK(std::find(now.begin(), now.end(), pid) != now.end());
  job.go_on("twenty");
  CHECK(job.state_at_end() == undisturbed());
  CHECK(job.says("step=20 world=4 "));
}

TEST_CASE("a worker that is killed once more while it starts is started with the next world", "[pending]") {
  Held job;
  const std::vector<pid_t> survivors = job.lose_one();
  REQUIRE(job.has_said("starts again"));
  for (const pid_t pid : job.workers())
    if (std::find(survivors.begin(), survivors.end(), pid) == survivors.end()) REQUIRE(::kill(pid, SIGKILL) == 0);
  for (const char* file : {"ten", "start"}) job.go_on(file);
  REQUIRE(job.until("generation 3: 1 node, 4 workers"));
  CHECK(job.says("before it was in a world"));
  job.go_on("twenty");
  CHECK(job.state_at_end() == undisturbed());
}

TEST_CASE("a job that ends while a worker is started again ends at once", "[pending]") {
  Held job;
  (void)job.lose_one();
  REQUIRE(job.has_said("starts again"));
  for (const char* file : {"ten", "twenty"}) job.go_on(file);
  CHECK(job.state_at_end() == undisturbed());
  CHECK(job.says("step=29 world=3 "));
  CHECK_FALSE(job.says("generation 3:"));
}

TEST_CASE("a worker that dies is lost at once, though the kernel has not freed its memory; its successor waits for that", "[pending]") {
  Held job;
  const std::vector<pid_t> before = job.all_hold();
  Debugger debugger{before[1]};
  if (!debugger.is_attached()) return;
  REQUIRE(::kill(before[1], SIGKILL) == 0);
  REQUIRE(job.until("ended by signal 9 (SIGKILL)"));
  REQUIRE(job.until("generation 2: 1 node, 3 workers, 3 go on here in the same process"));
  for (const char* file : {"ten", "start"}) job.go_on(file);
  REQUIRE(job.until("step=19 world=3 "));
  REQUIRE(job.has_said("is attached to it: its successor waits until that process detaches or ends"));
  CHECK(job.workers().size() == 3);
  CHECK_FALSE(job.says("generation 3:"));
  debugger.let_go();
  REQUIRE(job.until("generation 3: 1 node, 4 workers, 3 go on here in the same process, 1 that was started meanwhile joins"));
  job.go_on("twenty");
  CHECK(job.state_at_end() == undisturbed());
}

TEST_CASE("a job that is asked to end does not wait for a dead worker that the kernel still holds", "[pending]") {
  Held job;
  const std::vector<pid_t> before = job.all_hold();
  Debugger debugger{before[1]};
  if (!debugger.is_attached()) return;
  REQUIRE(::kill(before[1], SIGKILL) == 0);
  REQUIRE(job.until("generation 2: 1 node, 3 workers, 3 go on here in the same process"));
  job.go_on("ten");
  INFO(job.output());
  CHECK(job.asked_to_end() == 128 + SIGTERM);
  CHECK(job.workers().empty());
}

TEST_CASE("a node that is asked to end does not wait for a worker that SIGKILL does not end", "[pending]") {
  Job job{{.arguments = {"--shutdown_timeout", "1", "--no_python", "sleep", "600"}}};
  REQUIRE(job.line("generation 1: "));
  std::vector<pid_t> sleeps;
  while ((sleeps = job.children_named("sleep")).empty()) std::this_thread::sleep_for(std::chrono::milliseconds{10});
  Debugger debugger{sleeps.front()};
  if (!debugger.is_attached()) return;
  job.signal(SIGTERM);
  INFO(job.output());
  CHECK(job.wait() == 128 + SIGTERM);
  CHECK(job.says("SIGKILL has not ended it within 10.0 s: it is stuck in the kernel"));
}

TEST_CASE("a program that writes over its node's death futexes harms nobody", "[pending]") {
  Held job;
  const std::vector<pid_t> before = job.all_hold();
  {
    constexpr std::size_t slot = 64, bytes = 4 * slot;
    const elrun::Fd file{::open(job.death_futexes().c_str(), O_RDWR | O_CLOEXEC)};
    REQUIRE(file);
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    REQUIRE(at != MAP_FAILED);
    for (std::size_t i = 0; i < 4; ++i) {
      auto* const word = reinterpret_cast<volatile std::uint32_t*>(static_cast<char*>(at) + i * slot);
      CHECK((*word & FUTEX_TID_MASK) != 0);  // its worker holds it
      *word = i < 3 ? FUTEX_OWNER_DIED : FUTEX_TID_MASK;
      ::syscall(SYS_futex, word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    }
    ::munmap(at, bytes);
  }
  CHECK(::truncate(job.death_futexes().c_str(), 0) == -1);  // which would kill whoever uses them
  for (const char* file : {"ten", "twenty"}) job.go_on(file);
  CHECK(job.state_at_end() == undisturbed());
  CHECK_FALSE(job.says("generation 2:"));
  CHECK(job.says("step=20 world=4 "));
}

TEST_CASE("workers that die one after the other, before they are back from the slot in which the first one died, are one failure",
          "[pending]") {
  Held job{"1"};
  const std::vector<pid_t> before = job.all_hold();
  for (std::size_t i = 1; i < 4; ++i) {
    REQUIRE(::kill(before[i], SIGKILL) == 0);
    REQUIRE(job.until("generation " + std::to_string(i + 1) + ": 1 node, " + std::to_string(4 - i) + " worker"));
  }
  for (const char* file : {"ten", "start", "twenty"}) job.go_on(file);
  CHECK(job.state_at_end() == undisturbed());
  CHECK_FALSE(job.says("of 1 restart used"));
}

TEST_CASE("what a job inside a worker has left behind is not taken for another worker's of the same local rank", "[pending]") {
  const TemporaryDirectory here;
  const std::string file = here.path() + "/pid";
  // Worker 0 leaves a process that a job of its own would have left: with the local rank 1 of that job.
  Held job{"3", "if [ $LOCAL_RANK = 0 ]; then ( ELRUN_LOCAL_RANK=1 ELRUN_SOCKET=/inner/agent.sock setsid sh -c 'echo $$$$ >" + file +
                    ".new; mv " + file + ".new " + file + "; exec sleep 4242' >/dev/null 2>&1 & ); while [ ! -e " + file +
                    " ]; do sleep 0.01; done; fi"};
  (void)job.lose_one();  // worker 1
  CHECK(job.says("nobody can say whether workers that live started these processes"));
  pid_t left = 0;
  std::ifstream{file} >> left;
  REQUIRE(left > 1);
  CHECK(::kill(left, 0) == 0);
  for (const char* name : {"ten", "start", "twenty"}) job.go_on(name);
  CHECK(job.state_at_end() == undisturbed());
  ::kill(left, SIGKILL);  // had it not ended with the job
}

TEST_CASE("what a dead worker had started ends with its generation, also while the kernel still holds the worker", "[pending]") {
  Held job{"3", "setsid sleep 4242 & setsid sleep 4242 &"};
  const std::vector<pid_t> before = job.all_hold();
  std::vector<pid_t> started;
  std::ifstream children{"/proc/" + std::to_string(before[1]) + "/task/" + std::to_string(before[1]) + "/children"};
  for (pid_t child; children >> child;) started.push_back(child);
  REQUIRE(started.size() == 2);
  const elrun::Fd futexes{::open(job.death_futexes().c_str(), O_RDONLY | O_CLOEXEC)};
  std::uint32_t holder = 0;  // the thread whose end the agent sees
  REQUIRE(::pread(futexes.get(), &holder, sizeof holder, 64) == sizeof holder);
  std::vector<pid_t> threads;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/" + std::to_string(before[1]) + "/task"})
    if (const pid_t thread = std::stoi(entry.path().filename());
        thread != before[1] && static_cast<std::uint32_t>(thread) != (holder & FUTEX_TID_MASK))
      threads.push_back(thread);
  REQUIRE_FALSE(threads.empty());
  ThreadDebugger debugger{threads.front()};
  if (!debugger.is_attached()) return;
  REQUIRE(::kill(before[1], SIGKILL) == 0);
  REQUIRE(job.until("generation 2: 1 node, 3 workers, 3 go on here in the same process"));
  const auto runs = [](pid_t pid) {
    std::ifstream stat{"/proc/" + std::to_string(pid) + "/stat"};
    std::string text;
    return std::getline(stat, text) && text.find(") Z ") == std::string::npos;
  };
  for (int look = 0; look < 60'000 && std::any_of(started.begin(), started.end(), runs); ++look) ::usleep(1000);
  CHECK(std::none_of(started.begin(), started.end(), runs));
  debugger.let_go();
  for (const char* file : {"ten", "start", "twenty"}) job.go_on(file);
  CHECK(job.state_at_end() == undisturbed());
}
