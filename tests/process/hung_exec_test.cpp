// A worker's program is on a storage that does not answer, so its exec does not return. Nobody but that worker waits for it.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/fanotify.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/http.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

namespace fs = std::filesystem;
constexpr Wait told_within{60000};  // only a failing test waits for so long

/// A program whose exec does not return while this is there: fanotify asks this process for permission, which answers nothing.
class HangingExec {
 public:
  /// None where this machine does not allow it: it needs root.
  static std::optional<HangingExec> of(const std::string& program) {
    Fd questions{::fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY)};
    if (questions && ::fanotify_mark(questions.get(), FAN_MARK_ADD, FAN_OPEN_EXEC_PERM, AT_FDCWD, program.c_str()) == 0)
      return HangingExec{std::move(questions)};
    std::printf("SKIPPED: this machine lets no test decide about an exec\n");
    return std::nullopt;
  }

 private:
  explicit HangingExec(Fd questions) : questions_{std::move(questions)} {}
  Fd questions_;
};

/// Two workers of a program that the test may have hang, with a health port.
struct HungAgent {
  explicit HungAgent(const std::string& seconds, const std::string& limit = "300", std::vector<std::string> options = {}) {
    fs::copy_file("/bin/sleep", program());
    exec = HangingExec::of(program());
    if (!exec) return;
    options.insert(options.end(), {"--nproc_per_node", "2", "--health_port", "127.0.0.1:0", "--no_python", program(), seconds});
    job = std::make_unique<Job>(
        Job::Setting{.arguments = std::move(options),
                     .environment = {{"XDG_RUNTIME_DIR", folder.path()}, {"ELRUN_STORAGE_LIMIT", limit}, {"TMPDIR", folder.path()}}});
    const auto line = job->line("health, status and metrics at http://", told_within);
    REQUIRE(line);
    port = static_cast<std::uint16_t>(std::stoul(line->substr(line->rfind(':') + 1)));
    REQUIRE(job->line("generation 1: 1 node, 2 workers", told_within));
  }
  [[nodiscard]] std::string program() const { return folder.path() + "/program"; }
  [[nodiscard]] bool answers() const { return http_get(port, "/livez").starts_with("HTTP/1.1 200 OK\r\n"); }
  TemporaryDirectory folder;
  std::optional<HangingExec> exec;
  std::unique_ptr<Job> job;
  std::uint16_t port = 0;
};

std::vector<pid_t> children_of(pid_t process) {  // of all its threads
  std::vector<pid_t> children;
  std::error_code error;  // where the process ends meanwhile it has none
  for (fs::directory_iterator thread{"/proc/" + std::to_string(process) + "/task", error}, end; !error && thread != end;
       thread.increment(error)) {
    std::ifstream file{thread->path() / "children"};
    for (pid_t child = 0; file >> child;) children.push_back(child);
  }
  return children;
}

/// Two workers of a shell. One has started a process of its own, and the exec of the other is stuck: while this is there, not even SIGKILL ends it.
struct StuckAgent {
  explicit StuckAgent(const std::string& limit = "300") : health{free_port()}, rendezvous{free_port()} {
    fs::create_directory(folder.path() + "/storage");
    // elrun opens the program once to look at it, then each worker does.
    job = std::make_unique<Job>(
        Job::Setting{.arguments = {source_path("tests/process/programs/stuck_storage.py"), folder.path() + "/storage", "/bin/sh", "2",
                                   program_path("elrun"), "--nproc_per_node", "2", "--health_port", "127.0.0.1:" + std::to_string(health),
                                   "--rdzv_endpoint", "127.0.0.1:" + std::to_string(rendezvous), "--no_python", program(), "-c",
                                   "sleep 1000 & echo helper=$$!; wait"},
                     .environment = {{"XDG_RUNTIME_DIR", folder.path()}, {"ELRUN_STORAGE_LIMIT", limit}, {"TMPDIR", folder.path()}},
                     .program = "/usr/bin/python3"});
    const auto said = job->line("helper=", told_within);
    if (job->says("SKIPPED")) {
      std::printf("%s", job->output().c_str());
      return;
    }
    is_allowed = true;
    const std::vector<pid_t> agents = job->children_named("elrun");
    if (!said || agents.size() != 1) return;
    pid = agents.front();
    agent.emplace(pid);
    helper.emplace(static_cast<pid_t>(number_after(*said, "helper")));
    const std::string hangs = "an open of the program waits for good";
    if (!job->says(hangs) && !job->line(hangs, told_within)) return;
    for (const pid_t child : children_of(pid)) {
      const std::string name = text_of_process(std::to_string(child), "comm");
      (name == "elrun-guard\n" ? guard : name == "program\n" ? first : stuck).emplace(child);
    }
  }
  /// Nothing where this machine does not allow it. With a limit that is over before the test has seen all that the agent started, it begins again.
  static std::unique_ptr<StuckAgent> of(const std::string& limit = "300") {
    for (int tries = 0; tries < 4; ++tries) {
      auto made = std::make_unique<StuckAgent>(limit);
      INFO(made->job->output());
      if (!made->is_allowed || (made->guard && made->first && made->stuck)) return made->is_allowed ? std::move(made) : nullptr;
      REQUIRE(tries < 3);
    }
    return nullptr;
  }
  [[nodiscard]] bool has_directory() const {
    const fs::directory_iterator all{folder.path()};
    return std::any_of(begin(all), end(all), [](const auto& entry) { return entry.path().filename().native().starts_with("elrun-"); });
  }
  [[nodiscard]] std::string program() const { return folder.path() + "/storage/program"; }
  TemporaryDirectory folder;
  std::uint16_t health, rendezvous;
  std::unique_ptr<Job> job;
  pid_t pid = -1;
  bool is_allowed = false;
  std::optional<Watch> agent, guard, first, helper, stuck;
};

bool is_free(std::uint16_t port) {
  const Fd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int yes = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // connections that were closed do not count
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  return ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 && ::listen(listener.get(), 1) == 0;
}

}  // namespace

TEST_CASE("an agent whose workers' exec hangs answers, and SIGTERM ends it", "[hung_exec]") {
  HungAgent agent{"1000"};
  if (!agent.job) return;
  CHECK(agent.answers());
  CHECK(agent.job->line("worker 1 of this node: the exec of " + agent.program() + " has not returned yet; does its storage answer?",
                        told_within));
  CHECK(agent.answers());
  const auto began = std::chrono::steady_clock::now();
  agent.job->signal(SIGTERM);
  CHECK(agent.job->wait(told_within) == 128 + SIGTERM);
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds{20});
  INFO(agent.job->output());
  for (const auto& left : fs::directory_iterator{agent.folder.path()}) CHECK_FALSE(left.path().filename().native().starts_with("elrun-"));
}

TEST_CASE("an exec that has not returned within ELRUN_STORAGE_LIMIT has failed, and the report says why", "[hung_exec]") {
  HungAgent agent{"1000", "2"};
  if (!agent.job) return;
  CHECK(agent.job->wait(told_within) == 126);
  INFO(agent.job->output());
  CHECK(agent.job->says("the exec of " + agent.program() + " has not returned in 2.0 s: its storage does not answer"));
}

TEST_CASE("a worker whose exec hangs counts as hung after --hang_timeout, and no debugger is asked about it", "[hung_exec]") {
  HungAgent agent{"1000", "300", {"--hang_timeout", "2", "--hang_on", "output", "--tee", "3"}};
  if (!agent.job) return;
  CHECK(agent.job->wait(told_within) == 174);
  INFO(agent.job->output());
  CHECK(agent.job->says("worker 0 of this node: the exec of " + agent.program() + " has not returned; does its storage answer?"));
  CHECK_FALSE(agent.job->says("stacks of worker"));
}

TEST_CASE("workers run when the storage of their program answers again", "[hung_exec]") {
  HungAgent agent{"0.1"};
  if (!agent.job) return;
  REQUIRE(agent.job->line("has not returned yet", told_within));
  agent.exec.reset();
  CHECK(agent.job->wait(told_within) == 0);
  INFO(agent.job->output());
}

TEST_CASE("a program that cannot be executed after all is named, also when that took long", "[hung_exec]") {
  HungAgent agent{"1000"};
  if (!agent.job) return;
  REQUIRE(agent.job->line("has not returned yet", told_within));
  fs::resize_file(agent.program(), 0);
  agent.exec.reset();
  CHECK(agent.job->wait(told_within) == 126);
  INFO(agent.job->output());
  CHECK(agent.job->says("execute " + agent.program() + ": "));
}

TEST_CASE("an agent that is killed while an exec hangs leaves nothing behind", "[hung_exec]") {
  HungAgent agent{"1000"};
  if (!agent.job) return;
  CHECK(agent.answers());
  std::vector<Watch> children;
  for (const auto until = std::chrono::steady_clock::now() + told_within; children.size() < 3 && std::chrono::steady_clock::now() < until;)
    children = agent.job->children();
  CHECK(children.size() == 3);  // the guard and two workers
  agent.job->signal(SIGKILL);
  CHECK(agent.job->wait(told_within) == 128 + SIGKILL);
  for (const Watch& child : children) CHECK(child.ended(Wait{10000}));
}

TEST_CASE("an agent that is killed while not even SIGKILL ends an exec leaves that process alone behind", "[hung_exec]") {
  const auto agent = StuckAgent::of();
  if (!agent) return;
  CHECK_FALSE(is_free(agent->rendezvous));
  CHECK_FALSE(is_free(agent->health));
  ::kill(agent->pid, SIGKILL);
  REQUIRE(agent->agent->ended(told_within));
  CHECK(is_free(agent->rendezvous));
  CHECK(is_free(agent->health));
  CHECK(agent->first->ended(Wait{10000}));
  CHECK(agent->helper->ended(Wait{10000}));
  CHECK(agent->guard->ended(Wait{10000}));
  CHECK_FALSE(agent->has_directory());
  CHECK_FALSE(agent->stuck->ended(Wait{0}));
}

TEST_CASE("an agent whose worker's exec is over its limit ends with its guard, also where not even SIGKILL ends that exec", "[hung_exec]") {
  const auto agent = StuckAgent::of("8");  // s, within which this test looks at what the agent has started
  if (!agent) return;
  CHECK(agent->job->line("the program has ended: 126", told_within));
  INFO(agent->job->output());
  CHECK(agent->job->says("has not returned in 8.0 s: its storage does not answer"));
  CHECK(agent->guard->ended(Wait{10000}));  // the agent waited for it, but for 1 s at most
  CHECK(agent->helper->ended(Wait{10000}));
  CHECK_FALSE(agent->has_directory());
  CHECK(is_free(agent->rendezvous));
  CHECK_FALSE(agent->stuck->ended(Wait{0}));
}

TEST_CASE("a debugger whose exec nothing ends is no process that workers left behind", "[hung_exec]") {
  const TemporaryDirectory folder;
  const std::string storage = folder.path() + "/storage", tools = folder.path() + "/tools";
  for (const std::string& made : {storage, tools}) fs::create_directory(made);
  fs::create_symlink(storage + "/program", tools + "/gdb");
  Job job{{.arguments = {source_path("tests/process/programs/stuck_storage.py"), storage, "/bin/sh", "0", program_path("elrun"),
                         "--max_restarts", "1", "--hang_timeout", "2", "--hang_on", "output", "--tee", "3", "--no_python", "/bin/sleep",
                         "1000"},
           .environment = {{"XDG_RUNTIME_DIR", folder.path()}, {"TMPDIR", folder.path()}, {"PATH", tools}, {"ELRUN_STORAGE_LIMIT", "4"}},
           .program = "/usr/bin/python3"}};
  const bool has_ended = job.line("the program has ended: 174", told_within).has_value();
  if (job.says("SKIPPED")) {
    std::printf("%s", job.output().c_str());
    return;
  }
  INFO(job.output());
  CHECK(has_ended);
  CHECK(job.says("an open of the program waits for good"));
  CHECK(job.says("generation 2: "));
  CHECK_FALSE(job.says("had left behind"));
}

}  // namespace elrun::test
