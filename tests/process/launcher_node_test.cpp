// One node: real launchers, real workers, real signals.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "lib/base/fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace elrun::test;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

namespace {

std::string worker() { return test_program_path("launcher_worker"); }

// A launcher whose private directory is one of the test's: what it leaves behind can be seen.
struct Node {
  explicit Node(std::vector<std::string> options, std::vector<std::string> mode, std::map<std::string, std::string> environment = {})
      : job{setting(std::move(options), std::move(mode), std::move(environment))} {}
  Job::Setting setting(std::vector<std::string> arguments, std::vector<std::string> mode,
                       std::map<std::string, std::string> environment) const {
    arguments.insert(arguments.end(), {"--no_python", worker()});
    arguments.insert(arguments.end(), mode.begin(), mode.end());
    environment["XDG_RUNTIME_DIR"] = directory.path();
    return {.arguments = std::move(arguments), .environment = std::move(environment)};
  }
  TemporaryDirectory directory;
  Job job;
};

}  // namespace

TEST_CASE("workers find their place in the environment", "[launcher][process]") {
  Node node{{"--nproc_per_node", "2", "--rdzv_id", "job"},
            {"environment", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "OMP_NUM_THREADS", "MINE",
             "RANK_${local_rank}"},
            {{"MINE", "kept"}}};
  CHECK(node.job.wait() == 0);
  CHECK(
      node.job.says("rank 0: LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
                    "TORCHELASTIC_RUN_ID=job OMP_NUM_THREADS=1 MINE=kept RANK_0=(unset)"));
  CHECK(node.job.says("rank 1: LOCAL_RANK=1"));
  CHECK(node.directory.names().empty());
}

TEST_CASE("the workers' own store has a fresh port in each generation, or the one that was asked for", "[launcher][process]") {
  const auto ports = [](std::vector<std::string> options) {
    options.insert(options.end(), {"--nproc_per_node", "2", "--max_restarts", "1"});
    Node node{std::move(options), {"job", "die_once"}};
    const auto first = node.job.line("generation=1"), second = node.job.line("generation=2");
    REQUIRE(first);
    REQUIRE(second);
    CHECK(node.job.wait() == 0);
    return std::pair{number_after(*first, "port"), number_after(*second, "port")};
  };
  const auto [first, second] = ports({});
  CHECK(first > 0);
  CHECK(second > 0);
  CHECK(first != second);
  CHECK(ports({"--master_port", "29511"}) == std::pair<std::int64_t, std::int64_t>{29511, 29511});
}

TEST_CASE("exit codes tell what happened", "[launcher][process]") {
  const auto code = [](std::vector<std::string> arguments) {
    Job job{{.arguments = std::move(arguments)}};
    const int got = job.wait();
    INFO(job.output());
    CHECK((got == 0 || !job.output().empty()));
    return got;
  };
  CHECK(code({"--help"}) == 0);
  CHECK(code({"--bogus"}) == 64);
  CHECK(code({"/no/such/script.py"}) == 66);
  CHECK(code({"--standalone", "--nnodes", "2", "x"}) == 78);
  CHECK(code({"--no_python", "/etc/passwd"}) == 126);
  CHECK(code({"--no_python", "no-such-program"}) == 127);
  CHECK(code({"--nproc_per_node", "2", "--no_python", worker(), "exit", "1", "3"}) == 3);
  CHECK(code({"--no_python", "/bin/sh", "-c", "kill -SEGV 0"}) == 128 + SIGSEGV);
}

TEST_CASE("what could not be printed is not told as success, and ends nothing else", "[launcher][process]") {
  TemporaryDirectory directory;
  const std::string elrun = program_path("elrun") + " ", root = directory.path() + "/root", place = directory.path() + "/termination-log";
  std::filesystem::create_directories(root + "/ckpt");
  std::ofstream{place} << "old text";
  const auto code = [&](const std::string& command) {
    Job job{{.arguments = {"-c", elrun + command}, .environment = {{"ELRUN_TERMINATION_LOG", place}}, .program = "/bin/sh"}};
    const int got = job.wait();
    INFO(command << "\n" << job.output());
    CHECK(job.says("not all of the output could be written") == (got == 70));
    return got;
  };
  for (const std::string& command :
       std::vector<std::string>{"--help", "--version", "--dry_run --no_python /bin/true", "ckpt ls --json " + root}) {
    CHECK(code(command + " > /dev/full") == 70);
    CHECK(code(command + " > /dev/null") == 0);
  }
  CHECK(code("--bogus 2> /dev/full") == 64);
  std::ifstream refusal{place};
  CHECK(nlohmann::json::parse(refusal, nullptr, false).is_object());
}

TEST_CASE("a reader that went away changes no exit code", "[launcher][process]") {
  const TemporaryDirectory directory;
  const std::string gone = directory.path() + "/gone", place = directory.path() + "/termination-log", long_word(12000, 'x');
  std::ofstream{place} << "old text";
  const auto code = [&](const std::string& command) {
    std::filesystem::remove(gone);
    Job job{{.arguments = {"-c", "(while [ ! -e " + gone + " ]; do sleep 0.01; done; " + program_path("elrun") + " " + command +
                                     "; echo ended with $? >&2) | (exec <&-; : > " + gone + ")"},
             .environment = {{"ELRUN_TERMINATION_LOG", place}},
             .program = "/bin/sh"}};
    job.wait();
    INFO(job.output());
    const auto at = job.output().find("ended with ");
    REQUIRE(at != std::string::npos);
    return std::stoi(job.output().substr(at + 11));
  };
  CHECK(code("--help") == 0);
  CHECK(code("--dry_run --no_python /bin/true " + long_word) == 0);
  CHECK(code("--dry_run --no_python no-such-program " + long_word) == 127);
  std::ifstream refusal{place};
  std::string left;
  std::getline(refusal, left);
  CHECK(left == "old text");
}

TEST_CASE("a file that is no program of this machine is told as such", "[launcher][process]") {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/text";
  std::ofstream{path} << "no program\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  Job job{{.arguments = {"--no_python", path}}};
  CHECK(job.wait() == 126);
  CHECK(job.says(path));
}

TEST_CASE("what refuses a start is said where Kubernetes looks", "[launcher][process]") {
  struct Refused {
    std::vector<std::string> options;
    std::map<std::string, std::string> environment;
    std::string why;
  };
  const Refused refused =
      GENERATE(Refused{{"--log_dir", "/proc/no"}, {}, "--log_dir"},
               Refused{{"--health_port", "192.0.2.1:0"}, {}, "--health_port"},  // an address of documentation, which no machine has
               Refused{{"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:1"},
                       {{"ELRUN_RDZV_TOKEN_FILE", "/no/such"}},
                       "/no/such"});
  const bool as_torchrun = GENERATE(false, true);
  TemporaryDirectory directory;
  const std::string place = directory.path() + "/termination-log";
  std::ofstream{place} << "old text";
  std::vector<std::string> arguments = refused.options;
  arguments.insert(arguments.end(), {as_torchrun ? "--exit-codes=torchrun" : "--exit-codes=elrun", "--no_python", "/bin/true"});
  auto environment = refused.environment;
  environment["ELRUN_TERMINATION_LOG"] = place;
  Job job{{.arguments = arguments, .environment = environment}};
  const int code = as_torchrun ? 1 : 78;
  CHECK(job.wait() == code);
  INFO(job.output());
  CHECK(job.says(refused.why));
  std::ifstream file{place};
  const auto line = nlohmann::json::parse(file, nullptr, false);
  REQUIRE(line.is_object());
  CHECK(line["exit_code"] == code);
  CHECK(line["exit_code_of"] == "elrun");
  CHECK_THAT(line["cause"].get<std::string>(), Catch::Matchers::Contains(refused.why));
}

TEST_CASE("a relative XDG_RUNTIME_DIR is no place for the agent's directory", "[launcher][process]") {
  Job job{{.arguments = {"--no_python", "/bin/sh", "-c", "cd / && [ -S $ELRUN_SOCKET ]"}, .environment = {{"XDG_RUNTIME_DIR", "."}}}};
  CHECK(job.wait() == 0);
  INFO(job.output());
}

TEST_CASE("what refuses elrun store is said there, too", "[launcher][process]") {
  TemporaryDirectory directory;
  const std::string place = directory.path() + "/termination-log";
  std::ofstream{place} << "old text";
  const bool by_token = GENERATE(false, true);
  std::map<std::string, std::string> environment{{"ELRUN_TERMINATION_LOG", place}};
  if (by_token) environment["ELRUN_RDZV_TOKEN_FILE"] = "/no/such";
  Job store{{.arguments = {"store", "--host", "192.0.2.1", "--port", "0"}, .environment = environment}};
  CHECK(store.wait() == 78);
  std::ifstream file{place};
  const auto line = nlohmann::json::parse(file, nullptr, false);
  REQUIRE(line.is_object());
  CHECK(line["exit_code"] == 78);
  CHECK_THAT(line["cause"].get<std::string>(), Catch::Matchers::Contains(by_token ? "/no/such" : "192.0.2.1"));
}

TEST_CASE("a command that runs beside a job leaves the container's termination log to the job", "[launcher][process]") {
  TemporaryDirectory directory;
  const std::string place = directory.path() + "/termination-log";
  std::ofstream{place} << "old text";
  const auto command = GENERATE(std::vector<std::string>{"ckpt", "lss"}, std::vector<std::string>{"status", "--no-such-option"},
                                std::vector<std::string>{"doctor", "--no-such-option"});
  Job job{{.arguments = command, .environment = {{"ELRUN_TERMINATION_LOG", place}}}};
  CHECK(job.wait() > 0);
  std::ifstream file{place};
  std::string line;
  std::getline(file, line);
  CHECK(line == "old text");
}

TEST_CASE("a worker for which no process can be made is not told as the one that died before it", "[launcher][process]") {
  TemporaryDirectory directory;
  const std::string events = directory.path() + "/events";
  // The first leaves a record, and takes the agent's descriptors away once the agent has told of its start.
  const std::string script = "[ $ELRUN_RESTART_COUNT = 0 ] || exit 0; until grep -q START " + events +
                             "; do sleep 0.01; done; echo first=$$$$; echo '{\"message\": \"of the first\"}' > $TORCHELASTIC_ERROR_FILE; "
                             "prlimit --pid $PPID --nofile=0: && exit 3";
  Job job{{.arguments = {"--max_restarts", "1", "--event-log", events, "--no_python", "/bin/sh", "-c", script},
           // The search for leaks at the end of an instrumented agent opens files of /proc.
           .environment = {{"XDG_RUNTIME_DIR", directory.path()}, {"ASAN_OPTIONS", "detect_leaks=0"}}}};
  const auto first = job.line("first=");
  REQUIRE(first);
  CHECK(job.wait() == 126);
  INFO(job.output());
  CHECK(job.says("start a process for /bin/sh"));
  CHECK(job.says("exitcode  : 126 (pid: 0)"));
  CHECK_FALSE(job.says("exitcode  : 126 (pid: " + std::to_string(number_after(*first, "first"))));
  CHECK(job.output().find("error file is no error record", job.output().find("exitcode  : 126")) == std::string::npos);
  std::ifstream file{events};
  std::size_t starts = 0;
  for (std::string line; std::getline(file, line);) starts += line.find("\"START\"") != std::string::npos;
  CHECK(starts == 1);
}

TEST_CASE("a worker that dies is answered by a restart of all, as often as --max_restarts says", "[launcher][process]") {
  SECTION("once") {
    Node node{{"--nproc_per_node", "3", "--max_restarts", "1"}, {"die_once", "1"}};
    CHECK(node.job.wait() == 0);
    CHECK(node.job.says("rank=1"));
    CHECK(node.job.says("generation=2 restarts=1 own=1"));
    CHECK(node.job.says("SIGKILL"));
    CHECK(node.directory.names().empty());
  }
  SECTION("and then the first failure ends the job with its own code") {
    Node node{{"--nproc_per_node", "2", "--max_restarts", "2"}, {"exit", "1", "5"}};
    CHECK(node.job.wait() == 5);
    CHECK(node.job.says("generation 3: 1 node, 2 workers"));
    CHECK(node.job.says("the job failed, exit code 5"));
    CHECK(node.job.says("cause: "));
  }
}

TEST_CASE("what a dead worker started is gone as well", "[launcher][process]") {
  Node node{{"--max_restarts", "1"}, {"parent"}};
  const auto line = node.job.line("grandchild");
  REQUIRE(line);
  const Watch grandchild{static_cast<pid_t>(number_after(*line, "pid"))};
  CHECK(node.job.wait() == 0);
  CHECK(grandchild.ended(10s));
}

TEST_CASE("a signal is forwarded, and the exit code says so", "[launcher][process]") {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    Node node{{"--nproc_per_node", "2"}, {"wait"}};
    REQUIRE(node.job.line("ready"));
    REQUIRE(node.job.line("ready"));
    node.job.signal(number);
    CHECK(node.job.wait() == 128 + number);
    CHECK(node.job.says("got " + std::to_string(number)));
    CHECK(node.job.says("this node has left; 2 workers ended; exit code " + std::to_string(128 + number)));
    CHECK(node.directory.names().empty());
  }
}

TEST_CASE("workers that do not listen are killed after the grace, or by the second signal", "[launcher][process]") {
  SECTION("grace") {
    Node node{{"--shutdown_timeout", "0.3"}, {"deaf"}};
    REQUIRE(node.job.line("ready"));
    node.job.signal(SIGTERM);
    CHECK(node.job.wait(10s) == 143);
  }
  SECTION("again") {
    Node node{{}, {"deaf"}};
    REQUIRE(node.job.line("ready"));
    node.job.signal(SIGTERM);
    REQUIRE(node.job.line("forwarded"));
    node.job.signal(SIGTERM);
    CHECK(node.job.wait(10s) == 143);
  }
}

TEST_CASE("an agent that is killed takes its workers, their children and its directory along", "[launcher][process]") {
  Node node{{"--nproc_per_node", "2"}, {"deaf"}};
  REQUIRE(node.job.line("ready"));
  REQUIRE(node.job.line("ready"));
  const std::vector<Watch> children = node.job.children();
  CHECK(children.size() == 3);  // the guard and two workers
  CHECK(node.directory.names().size() == 1);
  node.job.signal(SIGKILL);
  for (const Watch& child : children) CHECK(child.ended(10s));
  CHECK(node.directory.names().empty());
}

TEST_CASE("the guard has the workers of a new generation, and none of the old", "[launcher][process]") {
  Node node{{"--nproc_per_node", "2", "--max_restarts", "1"}, {"job", "wait"}};
  const auto line = node.job.line("ready rank=1");
  REQUIRE(line);
  ::kill(static_cast<pid_t>(number_after(*line, "pid")), SIGKILL);
  REQUIRE(node.job.line("generation=2"));
  REQUIRE(node.job.line("generation=2"));
  const std::vector<Watch> children = node.job.children();
  CHECK(children.size() == 3);
  node.job.signal(SIGKILL);
  for (const Watch& child : children) CHECK(child.ended(10s));
}

TEST_CASE("a reader that stopped reading does not stop the launcher", "[launcher][process]") {
  Job job{{.arguments = {"--no_python", "/bin/sh", "-c", "head -c 60000 /dev/zero >&2; echo ready; exec head -c 300000 /dev/zero >&2"}}};
  REQUIRE(job.line("ready"));
  const Watch launcher{job.pid()};
  CHECK_FALSE(launcher.ended(Wait{300}));  // its worker fills the pipe and waits
  job.signal(SIGTERM);                     // from here on nobody reads
  CHECK(launcher.ended(10s));
}

TEST_CASE("a job whose guard was killed goes on, restarts included, and says so", "[launcher][process]") {
  Node node{{"--nproc_per_node", "2", "--max_restarts", "1"}, {"job", "wait"}};
  const auto line = node.job.line("ready rank=1");
  REQUIRE(line);
  const auto worker = static_cast<pid_t>(number_after(*line, "pid"));
  const std::vector<pid_t> guard = node.job.children_named("elrun-guard");
  REQUIRE(guard.size() == 1);
  ::kill(guard.front(), SIGKILL);
  REQUIRE(node.job.line("guard process was killed"));
  ::kill(worker, SIGKILL);
  REQUIRE(node.job.line("ready rank=1"));
  node.job.signal(SIGTERM);
  CHECK(node.job.wait() == 143);
}

TEST_CASE("an agent whose directory was removed serves the workers that start later in another one", "[launcher][process]") {
  const bool with_its_place = GENERATE(false, true);  // as logind removes $XDG_RUNTIME_DIR
  Node node{{"--nproc_per_node", "2", "--max_restarts", "1", "--shutdown_timeout", "5"}, {"job", "wait"}};
  const auto line = node.job.line("ready rank=1");
  REQUIRE(line);
  const auto names = node.directory.names();
  REQUIRE(names.size() == 1);
  const std::string own = node.directory.path() + "/" + names.front();
  std::filesystem::remove_all(with_its_place ? node.directory.path() : own);
  ::kill(static_cast<pid_t>(number_after(*line, "pid")), SIGKILL);
  const std::string words = own + " was removed: workers that start from now on reach this agent at ";
  const auto told = node.job.line(words);
  REQUIRE(told);
  const std::string rest = told->substr(told->find(words) + words.size());
  const std::filesystem::path socket = rest.substr(0, rest.find(','));
  CHECK(std::filesystem::is_socket(socket));
  CHECK(node.job.line("ready rank=1"));
  node.job.signal(SIGTERM);
  CHECK(node.job.wait() == 143);
  CHECK_FALSE(std::filesystem::exists(socket.parent_path()));
}

TEST_CASE("programs that use libelrun's session", "[launcher][process]") {
  SECTION("meet, finish, and the job is done") {
    Node node{{"--nproc_per_node", "3"}, {"job"}};
    CHECK(node.job.wait() == 0);
    CHECK(node.job.says("finished rank=2 generation=1"));
  }
  SECTION("are restarted without being asked for, and the recovery is told") {
    Node node{{"--nproc_per_node", "3"}, {"job", "die_once"}};
    CHECK(node.job.wait() == 0);
    CHECK(node.job.says("finished rank=2 generation=2"));
    CHECK(node.job.says("recovered: step 1"));
  }
  SECTION("but not when none is allowed") {
    Node node{{"--nproc_per_node", "2", "--max_restarts", "0"}, {"job", "die_once"}};
    CHECK(node.job.wait() == 137);
  }
  SECTION("once the job is over a death changes nothing") {
    Node node{{"--nproc_per_node", "2"}, {"job", "over_then_die"}};
    CHECK(node.job.wait() == 0);
  }
}

TEST_CASE("what a worker that stays has started is left alone, what a dead one has started is ended", "[launcher][process]") {
  const bool is_virtual = GENERATE(false, true);
  const int victim = GENERATE(0, 1);
  TemporaryDirectory directory;
  // Each worker leaves a process behind that has a session of its own, and no parent but the agent.
  const std::string file = directory.path() + "/$RANK";
  const std::string script = "if [ $ELRUN_RESTART_COUNT = 0 ]; then (setsid sh -c 'echo $$$$ > " + file + ".new; mv " + file + ".new " +
                             file + "; exec sleep 1000' >/dev/null 2>&1 &); while [ ! -e " + file + " ]; do sleep 0.01; done; fi; exec " +
                             worker() + " stay " + std::to_string(victim);
  std::vector<std::string> arguments{"--nproc_per_node", "3", "--no_python", "/bin/sh", "-c", script};
  if (is_virtual) arguments.insert(arguments.begin(), "--virtual_local_rank");
  Job job{{.arguments = arguments, .environment = {{"CUDA_VISIBLE_DEVICES", "0,1,2"}}}};
  CHECK(job.wait() == 0);
  INFO(job.output());
  CHECK(job.says("generation 2: 1 node, 2 workers, 2 go on here in the same process"));
  for (int rank = 0; rank < 3; ++rank) {
    pid_t child = 0;
    std::ifstream{directory.path() + "/" + std::to_string(rank)} >> child;
    INFO("child " << child << " of rank " << rank);
    REQUIRE(child > 1);
    CHECK((::kill(child, SIGKILL) == 0) == (rank != victim));
  }
}

TEST_CASE("an inherited ignored SIGCHLD does not hide the workers' ends", "[launcher][process]") {
  Job job{{.arguments = {"-c", "trap '' CHLD; exec " + program_path("elrun") + " --no_python " + worker() + " exit 0 7"},
           .program = "/bin/sh"}};
  CHECK(job.wait() == 7);
}

TEST_CASE("a signal that the parent had blocked ends the launcher, and one that came before it was there", "[launcher][process]") {
  const std::string elrun = program_path("elrun") + " --no_python sleep 600";
  SECTION("while it runs") {
    Job job{{.arguments = {"--block-signal=TERM", "--block-signal=CHLD", "/bin/sh", "-c", "exec " + elrun}, .program = "/usr/bin/env"}};
    REQUIRE(job.line("generation 1: "));
    job.signal(SIGTERM);
    CHECK(job.wait() == 143);
  }
  SECTION("before") {
    Job job{{.arguments = {"--block-signal=TERM", "/bin/sh", "-c", "kill -TERM $$; exec " + elrun}, .program = "/usr/bin/env"}};
    CHECK(job.wait() == 143);
  }
}

TEST_CASE("process 1 of a container is ended by a signal that comes while it starts", "[launcher][process]") {
  const auto in_container = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"--pid", "--fork", "--mount-proc", "--kill-child=KILL"});
    return Job::Setting{.arguments = std::move(words), .program = "/usr/bin/unshare"};
  };
  if (Job{in_container({"/bin/true"})}.wait() != 0) {
    std::printf("SKIPPED: no process namespaces here\n");
    return;
  }
  const TemporaryDirectory directory;
  const std::string events = directory.path() + "/events";
  REQUIRE(::mkfifo(events.c_str(), 0600) == 0);  // elrun waits for its reader before it handles signals
  Job job{in_container({program_path("elrun"), "--event-log", events, "--no_python", "sleep", "600"})};
  const auto guards = [&] {
    const std::vector<pid_t> elrun = job.children_named("elrun");
    const std::string pid = elrun.empty() ? "none" : std::to_string(elrun.front());
    return text_of_process(pid, "task/" + pid + "/children");
  };
  for (int looks = 0; guards().empty() && looks < 6000; ++looks) std::this_thread::sleep_for(10ms);
  REQUIRE_FALSE(guards().empty());
  ::kill(job.children_named("elrun").at(0), SIGTERM);
  const int reader = ::open(events.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  CHECK(job.wait() == 143);
  ::close(reader);
}

TEST_CASE("with --log_format json every line of elrun's own is JSON, and says of which job, node and generation", "[launcher][process]") {
  Node node{{"--log_format", "json", "--rdzv_id", "job", "--master_port", std::to_string(free_port())}, {"exit", "0", "3"}};
  CHECK(node.job.wait() == 3);
  std::istringstream lines{node.job.output()};
  int told = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{\"time\"")) continue;
    INFO(line);
    const auto json = nlohmann::json::parse(line);
    CHECK(json.at("run") == "job");
    CHECK(json.at("generation") == 1);
    CHECK_FALSE(json.at("node").get<std::string>().empty());
    ++told;
  }
  CHECK(told >= 3);
  CHECK_FALSE(node.job.says("[elrun"));
}

TEST_CASE("files that take no more do not hold up the workers, and are told once each", "[launcher][process]") {
  const std::string elrun = program_path("elrun");
  const auto times = [](const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
    return n;
  };
  SECTION("the event log") {
    Node node{{"--event-log", "/dev/full", "--nproc_per_node", "2"}, {"environment", "RANK"}};
    CHECK(node.job.wait() == 0);
    CHECK(times(node.job.output(), "write --event-log /dev/full: ") == 1);
  }
  SECTION("an event log that hangs, and has all lines once it answers") {
    TemporaryDirectory folder;
    const std::string pipe = folder.path() + "/events", go = folder.path() + "/go";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    Job job{{.arguments = {"--event-log", pipe, "--no_python", "/bin/sh", "-c", "while [ ! -e " + go + " ]; do sleep 0.02; done"}}};
    REQUIRE(job.line("--event-log " + pipe + " has not answered within 1.0 s; the job goes on").has_value());
    const auto threads = [&] {
      std::set<std::string> all;
      std::error_code none;
      for (const auto& thread : std::filesystem::directory_iterator{"/proc/" + std::to_string(job.pid()) + "/task", none})
        all.insert(thread.path().filename());
      return all;
    };
    const std::set<std::string> before = threads();  // one of them opens the log
    const elrun::Fd reader{::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    REQUIRE(reader);
    const auto is_open = [&] {  // by elrun, whose open has returned: at the end of a job it waits a second for that, and no longer
      std::error_code none;
      for (const auto& entry : std::filesystem::directory_iterator{"/proc/" + std::to_string(job.pid()) + "/fd", none})
        if (std::filesystem::read_symlink(entry.path(), none) == pipe) return true;
      return false;
    };
    const auto has_returned = [&] { return is_open() && !std::ranges::includes(threads(), before); };
    for (int looks = 0; !has_returned() && looks < 6000; ++looks) std::this_thread::sleep_for(10ms);
    REQUIRE(is_open());
    std::ofstream{go} << "";
    CHECK(job.wait() == 0);
    char bytes[65536];
    const ssize_t got = ::read(reader.get(), bytes, sizeof bytes);
    const std::string events{bytes, static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
    for (const char* state : {"RENDEZVOUS", "START", "SUCCEEDED"}) CHECK(times(events, "status." + std::string{state}) >= 1);
    CHECK(times(job.output(), "--event-log") == 1);
  }
  SECTION("the event log, at the limit of files: it ends no agent, and a worker that reaches it is ended as without elrun") {
    TemporaryDirectory directory;
    const std::string file = directory.path() + "/file", events = directory.path() + "/events";
    Job job{{.arguments = {"-c", "ulimit -f 0; exec " + elrun + " --event-log " + events +
                                     " --no_python /bin/sh -c 'head -c 9 /dev/zero > " + file + "; echo ended by $?'"},
             .program = "/bin/sh"}};
    CHECK(job.wait() == 0);
    INFO(job.output());
    CHECK(times(job.output(), "write --event-log " + events + ": ") == 1);
    CHECK(job.says("ended by 153"));
  }
  SECTION("the workers' files: what does not fit is on the console") {
    TemporaryDirectory logs;
    // A limit of 8 blocks per file, for every process: workers write into elrun's pipe. Each of 4 streams is longer.
    const std::string lines =
        "i=0; while [ $i -lt 300 ]; do echo out of $RANK, line $i................; echo err of $RANK, line $i................ >&2; i=$((i+1)); done";
    Job job{{.arguments = {"-c", "ulimit -f 8; exec " + elrun + " --nproc_per_node 2 --tee 3 --log_dir " + logs.path() + " --event-log " +
                                     logs.path() + "/events --no_python /bin/sh -c '" + lines + "'"},
             .program = "/bin/sh"}};
    CHECK(job.wait() == 0);
    INFO(job.output());
    for (const char* stream : {"out of 0, line ", "out of 1, line ", "err of 0, line ", "err of 1, line "})
      CHECK(times(job.output(), stream) == 300);
    CHECK(times(job.output(), "is only shown") == 1);
    CHECK(job.says("write " + logs.path()));
  }
  SECTION("a worker that writes its file itself, on a disk that is full") {
    TemporaryDirectory disk;
    if (::mount("tmpfs", disk.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
      WARN("SKIPPED: mounting a small file system needs more rights than this user has");
      return;
    }
    Job job{{.arguments = {"--redirects", "1", "--log_dir", disk.path(), "--no_python", "/bin/sh", "-c", "head -c 200000 /dev/zero"}}};
    const int code = job.wait();
    ::umount2(disk.path().c_str(), MNT_DETACH);
    INFO(job.output());
    CHECK(code == 1);
    CHECK(job.says("the disk of its log files is full (" + disk.path()));
  }
}
