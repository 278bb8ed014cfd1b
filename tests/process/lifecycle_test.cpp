// Nobody is left behind: what workers start, what signals hit, and storms of them. Real processes, real signals.
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/property.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

namespace fs = std::filesystem;
constexpr Wait patience{60000};  // only a failing test waits for so long

std::vector<std::string> shell(std::vector<std::string> options, const std::string& script) {
  options.insert(options.end(), {"--no_python", "/bin/sh", "-c", script});
  return options;
}

pid_t pid_in(const std::string& file) {
  std::ifstream in{file};
  pid_t pid = 0;
  in >> pid;
  REQUIRE(pid > 1);
  return pid;
}

// --- storms ---

constexpr Wait agent_ends_within{60000};

// Alive: neither a zombie nor gone.
bool is_alive(pid_t pid) {
  const std::string text = text_of_process(std::to_string(pid), "stat");
  const auto bracket = text.rfind(')');
  return bracket != text.npos && bracket + 2 < text.size() && text[bracket + 2] != 'Z' && text[bracket + 2] != 'X';
}

// All that carry this mark in their environment: agents, guards, workers, and what these started.
std::vector<pid_t> processes_with(const std::string& mark) {
  std::vector<pid_t> found;
  std::error_code error;
  for (fs::directory_iterator at{"/proc", error}, end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    if (text_of_process(name, "environ").find(mark) != std::string::npos && is_alive(std::stoi(name))) found.push_back(std::stoi(name));
  }
  return found;
}

std::vector<pid_t> workers_of(const Job& agent) {
  std::vector<pid_t> found;
  for (const char* name : {"sh", "sleep"})
    for (const pid_t pid : agent.children_named(name)) found.push_back(pid);
  return found;
}

// What the next worker does: ends by itself, well or not; ignores SIGTERM or not; leaves a process behind or not.
std::string random_script(Rng& rng) {
  std::string script;
  if (rng.below(3) == 0) script += "trap '' TERM; ";
  if (rng.below(2) == 0) script += rng.below(2) == 0 ? "sleep 1000 & " : "setsid sleep 1000 >/dev/null 2>&1 & ";
  return script + "sleep 0." + std::to_string(rng.below(5)) + "; exit " + std::to_string(rng.below(4) == 0 ? 3 : 0);
}

void storm(Rng& rng) {
  const std::string name = "ELRUN_TEST_STORM", value = std::to_string(::getpid()) + "." + std::to_string(rng.below(1'000'000'000));
  const std::string mark = name + "=" + value;
  std::vector<std::string> options{
      "--nproc_per_node", std::to_string(1 + rng.below(3)), "--max_restarts", "2", "--shutdown_timeout", "0.5"};
  const std::size_t nodes = 1 + rng.below(2);
  if (nodes == 2)
    options.insert(
        options.end(),
        {"--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "127.0.0.1:" + std::to_string(free_port()), "--rdzv_conf",
         "join_timeout=5,last_call_timeout=0.2,coordinator_grace=3,keep_alive_interval=0.2,keep_alive_max_attempt=3"});
  std::vector<std::unique_ptr<Job>> agents;
  for (std::size_t i = 0; i < nodes; ++i)
    agents.push_back(std::make_unique<Job>(Job::Setting{.arguments = shell(options, random_script(rng)), .environment = {{name, value}}}));
  std::vector<std::pair<const Job*, pid_t>> stopped;  // with the agent whose worker it is, or which it is
  const auto go_on = [&](const Job* agent) {
    for (const auto& [whose, pid] : stopped)
      if (agent == nullptr || whose == agent) ::kill(pid, SIGCONT);
  };
  for (std::uint64_t blow = 0, blows = 2 + rng.below(12); blow < blows; ++blow) {
    std::this_thread::sleep_for(std::chrono::milliseconds{rng.below(60)});
    const Job& agent = *agents[rng.below(nodes)];
    pid_t target = agent.pid();
    if (const auto workers = workers_of(agent); rng.below(3) != 0 && !workers.empty()) target = workers[rng.below(workers.size())];
    switch (rng.below(4)) {
      case 0: ::kill(target, SIGKILL); break;
      case 1: ::kill(target, SIGTERM); break;
      case 2:
        ::kill(target, SIGSTOP);
        stopped.emplace_back(&agent, target);
        break;
      default: go_on(nullptr); stopped.clear();
    }
  }
  // An agent that is asked to end sees to its workers, stopped ones too. One that is not waits for them, however long.
  for (const auto& agent : agents) {
    agent->signal(SIGCONT);
    if (rng.below(2) == 0) agent->signal(SIGTERM);
    else go_on(agent.get());
  }
  for (const auto& agent : agents) {
    const int code = agent->wait(agent_ends_within);
    INFO(agent->output());
    REQUIRE(code >= 0);  // no hang
    CHECK(code != 70);   // nor an error of elrun's own
  }
  // What stays by right: a session of its own, at the good end of a job. Whatever else is there now ends, in a moment.
  const auto until = std::chrono::steady_clock::now() + agent_ends_within;
  std::vector<pid_t> left;
  do {
    left = processes_with(mark);
    std::erase_if(left, [](pid_t pid) { return ::getsid(pid) == pid && ::getpgid(pid) == pid; });
  } while (!left.empty() && std::chrono::steady_clock::now() < until);
  CAPTURE(left);
  CHECK(left.empty());
  for (const pid_t pid : processes_with(mark)) ::kill(pid, SIGKILL);
}

}  // namespace

TEST_CASE("what a failed worker started is gone before the next attempt, whatever session it is in", "[lifecycle]") {
  const TemporaryDirectory here;
  const std::string file = here.path() + "/pid";
  // The second attempt looks for what the first one left: a process of a session of its own, and its child.
  Job job{{.arguments = shell({"--max_restarts", "1"},
                              "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then"
                              "  setsid sh -c 'sleep 1000 & echo $! > " +
                                  file + ".new; mv " + file + ".new " + file +
                                  "; wait' &"
                                  "  while [ ! -e " +
                                  file +
                                  " ]; do sleep 0.01; done; exit 3;"
                                  "fi; kill -0 $(cat " +
                                  file + ") && exit 7; exit 0")}};
  CHECK(job.wait(patience) == 0);
  CHECK(job.says("that workers had left behind"));
}

TEST_CASE("an agent that is killed the moment its directory is there leaves none", "[lifecycle]") {
  const TemporaryDirectory place;
  for (int attempt = 0; attempt < 20; ++attempt) {
    Job job{{.arguments = shell({}, "sleep 1000"), .environment = {{"XDG_RUNTIME_DIR", place.path()}}}};
    const auto until = std::chrono::steady_clock::now() + patience;
    while (place.names().empty() && std::chrono::steady_clock::now() < until) {
    }
    ::kill(job.pid(), SIGKILL);
    while (!place.names().empty() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds{5});
    CAPTURE(attempt);
    REQUIRE(place.names().empty());
  }
}

TEST_CASE("an agent starts without standard input, output or error, and so do its workers", "[lifecycle]") {
  const std::string closed = GENERATE("<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-");
  INFO(closed);
  TemporaryDirectory directory;
  const std::string file = directory.path() + "/file";
  const std::string worker = "echo out && echo err >&2 && echo here > " + file;
  Job job{
      {.arguments = {"-c", "exec " + program_path("elrun") + " --no_python /bin/sh -c '" + worker + "' " + closed}, .program = "/bin/sh"}};
  CHECK(job.wait(patience) == 0);
  CHECK(fs::exists(file));
}

TEST_CASE("where no logs are asked for, an attempt's files are gone soon after it", "[lifecycle]") {
  const TemporaryDirectory place;
  // Different codes, so that no attempt waits. The last one has its own directory and that of the attempt before.
  Job job{{.arguments = shell({"--max_restarts", "4"},
                              "at=${TORCHELASTIC_ERROR_FILE%/attempt_*}; [ -d ${TORCHELASTIC_ERROR_FILE%/*} ] || exit 70;"
                              " [ $TORCHELASTIC_RESTART_COUNT = 4 ] || exit $((3 + TORCHELASTIC_RESTART_COUNT));"
                              " ls -d $at/attempt_*; [ $(ls -d $at/attempt_* | wc -l) = 2 ]"),
           .environment = {{"XDG_RUNTIME_DIR", place.path()}}}};
  CHECK(job.wait(patience) == 0);
  CHECK(job.says("attempt_4"));
}

// A FIFO stands for a file on a server that is away: to open it takes for ever.
TEST_CASE("a place of logs that hangs costs a worker its files, and the agent a moment", "[lifecycle]") {
  const TemporaryDirectory logs;
  const std::string at = "own=${TORCHELASTIC_ERROR_FILE%/*}; all=${own%/attempt_*}; ";
  SECTION("where a worker starts") {
    Job job{{.arguments = shell({"--max_restarts", "1", "--redirects", "3", "--log_dir", logs.path()},
                                at + "[ -n \"$own\" ] || exit 70; if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then"
                                     "  mkdir -p $all/attempt_1/0; mkfifo $all/attempt_1/0/stdout.log; exit 3;"
                                     "fi; echo these words are not redirected")}};
    CHECK(job.wait(patience) == 0);
    CHECK(job.says("its file system has not answered within"));
    CHECK(job.says("these words are not redirected"));
  }
  SECTION("where a worker ends") {
    Job job{
        {.arguments = shell({"--redirects", "3", "--log_dir", logs.path()}, at + "rm $own/stderr.log; mkfifo $own/stderr.log; exit 3")}};
    CHECK(job.wait(patience) == 3);
    CHECK(job.says("the place of its logs does not answer"));
  }
}

TEST_CASE("what was there before elrun is not its workers': a helper of the container's entry point stays", "[lifecycle]") {
  const TemporaryDirectory here;
  const std::string file = here.path() + "/pid";
  Job job{{.arguments = {"-c", "sleep 1000 >/dev/null 2>&1 & echo $! > " + file + "; exec " + program_path("elrun") +
                                   " --max_restarts 1 --no_python /bin/false"},
           .program = "/bin/sh"}};
  CHECK(job.wait(patience) == 1);
  CHECK(::kill(pid_in(file), SIGKILL) == 0);
}

TEST_CASE("what such a helper starts stays, too, although it becomes elrun's child", "[lifecycle]") {
  const TemporaryDirectory here;
  const std::string in = here.path() + "/";
  // The helper lives when elrun starts, and its own child has another parent when the worker fails.
  const std::string helper = "{ while [ ! -e " + in + "go ]; do sleep 0.01; done; sleep 1000 >/dev/null 2>&1 & echo $! > " + in + "pid; }";
  const std::string fails =
      "touch " + in + "go; while ! grep -qs \"^PPid:[[:space:]]*$PPID\" /proc/$(cat " + in + "pid)/status; do sleep 0.01; done; exit 1";
  Job job{{.arguments = {"-c", helper + " & exec " + program_path("elrun") + " --max_restarts 1 --no_python /bin/sh -c '" + fails + "'"},
           .program = "/bin/sh"}};
  CHECK(job.wait(patience) == 1);
  CHECK_FALSE(job.says("that workers had left behind"));
  CHECK(::kill(pid_in(in + "pid"), SIGKILL) == 0);
}

TEST_CASE("what others start in elrun's container stays, although elrun inherits it as process 1", "[lifecycle]") {
  const TemporaryDirectory here;
  const std::string file = here.path() + "/pid";
  const std::vector<std::string> container{"--pid", "--fork", "--mount-proc", "--kill-child=KILL", "/bin/sh", "-c"};
  const auto in_container = [&](const std::string& script) {
    std::vector<std::string> arguments = container;
    arguments.push_back(script);
    return arguments;
  };
  if (run("/usr/bin/unshare", in_container("exit 0")).code != 0) {
    std::printf("SKIPPED: no process namespaces here\n");
    return;
  }
  const std::string fails = "echo runs; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exec kill -0 $(cat " + file +
                            "); while ! grep -qs \"^PPid:[[:space:]]*1$\" /proc/$(cat " + file + ")/status; do sleep 0.01; done; exit 3";
  Job job{
      {.arguments = in_container("exec " + program_path("elrun") + " --nnodes 1 --max_restarts 1 --no_python /bin/sh -c '" + fails + "'"),
       .program = "/usr/bin/unshare"}};
  REQUIRE(job.line("runs"));
  const std::vector<pid_t> first = job.children_named("elrun");
  REQUIRE(first.size() == 1);
  // As `kubectl exec` does it: a shell beside elrun that leaves something behind.
  const Ended beside = run("/usr/bin/nsenter", {"--target", std::to_string(first[0]), "--pid", "--mount", "/bin/sh", "-c",
                                                "sleep 1000 >/dev/null 2>&1 & echo $! > " + file + ".new; mv " + file + ".new " + file});
  INFO(beside.output);
  REQUIRE(beside.code == 0);
  CHECK(job.wait(patience) == 0);
  CHECK_FALSE(job.says("that workers had left behind"));
}

TEST_CASE("what a failed worker started with another environment is gone before the next attempt", "[lifecycle]") {
  const TemporaryDirectory here;
  const std::string file = here.path() + "/pid";
  Job job{{.arguments = shell({"--max_restarts", "1"},
                              "if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then"
                              "  env -i PATH=$PATH setsid sh -c 'echo $$$$ > " +
                                  file + ".new; mv " + file + ".new " + file +
                                  "; exec sleep 1000' &"
                                  "  while [ ! -e " +
                                  file + " ]; do sleep 0.01; done; exit 3; fi; kill -0 $(cat " + file + ") && exit 7; exit 0")}};
  CHECK(job.wait(patience) == 0);
  CHECK(job.says("that workers had left behind"));
}

TEST_CASE("a reader that is slow gets the report of a failure, and a signal meanwhile changes nothing of it", "[lifecycle]") {
  const TemporaryDirectory here;
  const std::string in = here.path() + "/", elrun = program_path("elrun");
  // `$$$$` is `$$` when elrun has read it: the worker's own number.
  const std::string fails = " --no_python /bin/sh -c 'echo $$$$ > " + in + "pid.new; mv " + in + "pid.new " + in +
                            "pid; yes a-line-of-the-last-words | head -c 300000 >&2; exit 5'";
  SECTION("slow") {
    Job job{
        {.arguments = {"-c", elrun + fails + " 2>&1 | { while dd bs=4096 count=1 status=none | grep -a .; do sleep 0.01; done; true; }"},
         .program = "/bin/sh"}};
    CHECK(job.wait(patience) == 0);
    CHECK(job.says("/bin/sh FAILED"));
    CHECK(job.says("exitcode  : 5"));
  }
  SECTION("asked to end while its output waits to be read") {
    // The worker was collected, so only its words are left; nobody reads them before elrun has ended.
    const std::string asks = "while [ ! -e " + in + "pid ]; do sleep 0.05; done; while kill -0 $(cat " + in +
                             "pid) 2>/dev/null; do sleep 0.05; done; kill -TERM $elrun; wait $elrun; echo $? > " + in + "code";
    Job job{{.arguments = {"-c", "{ " + elrun + fails + " 2>&1 & elrun=$!; " + asks + "; } | { while [ ! -e " + in +
                                     "code ]; do sleep 0.05; done; cat >/dev/null; }"},
             .program = "/bin/sh"}};
    CHECK(job.wait(patience) == 0);
    std::ifstream code{in + "code"};
    int returned = -1;
    code >> returned;
    CHECK(returned == 5);
  }
}

TEST_CASE("at the good end of a job a process in a session of its own may stay", "[lifecycle]") {
  const TemporaryDirectory here;
  const std::string file = here.path() + "/pid";
  Job job{{.arguments = shell({}, "setsid sh -c 'echo $$$$ > " + file + ".new; mv " + file + ".new " + file +
                                      "; exec sleep 1000' >/dev/null 2>&1 &"
                                      " while [ ! -e " +
                                      file + " ]; do sleep 0.01; done; exit 0")}};
  CHECK(job.wait(patience) == 0);
  CHECK(::kill(pid_in(file), SIGKILL) == 0);
}

TEST_CASE("orphans of workers that end are collected while the worker runs", "[lifecycle]") {
  // Each `( ( true & ) )` leaves a child whose parent is gone. The worker ends well when none of them stays a zombie.
  Job job{
      {.arguments = shell(
           {},
           "parent=$PPID; i=0; while [ $i -lt 50 ]; do ( ( true & ) ); i=$((i+1)); done;"
           " i=0; while grep -l \"^PPid:[[:space:]]*$parent$\" /proc/[0-9]*/status 2>/dev/null | xargs grep -l 'State:.Z' 2>/dev/null | grep -q .; do"
           "  sleep 0.1; i=$((i+1)); [ $i -gt 300 ] && exit 5; done; exit 0")}};
  CHECK(job.wait(patience) == 0);
}

TEST_CASE("a hang is seen, looked at, and ended with 174", "[lifecycle][hang]") {
  SECTION("a Job that decides no step is restarted") {
    Job job{{.arguments = {"--nproc_per_node", "2", "--hang_timeout", "8", "--no_python", test_program_path("launcher_worker"), "job",
                           "stop_once"}}};
    CHECK(job.wait(patience) == 0);
    CHECK(job.says("no sign of progress for 8.0 s"));
    CHECK(job.says("thread "));
    CHECK(job.says("finished rank=1 generation=2"));
  }
  SECTION("a silent Python program ends with the stacks of its threads") {
    const TemporaryDirectory logs;
    Job job{{.arguments = {"--hang_timeout", "5", "--hang_on", "output", "--tee", "3", "--log_dir", logs.path(), "-m", "timeit", "-n", "1",
                           "-r", "1", "import time; time.sleep(1000)"}}};
    CHECK(job.wait(patience) == 174);
    CHECK(job.says("most recent call first"));  // Python's own words
    CHECK(job.says("timeit.py"));
  }
  SECTION("who writes does not hang") {
    const TemporaryDirectory logs;
    Job job{{.arguments = shell({"--hang_timeout", "4", "--hang_on", "output", "--tee", "1", "--log_dir", logs.path()},
                                "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; sleep 0.5; done")}};
    CHECK(job.wait(patience) == 0);
  }
  SECTION("nor who writes where the log was, nor who writes to the other stream") {
    const TemporaryDirectory logs;
    const std::string moves = "mv " + logs.path() + "/* " + logs.path() + "/old; ";
    const auto [which, option, then, to] = GENERATE(table<std::string, std::string, bool, std::string>(
        {{"--tee", "1", true, ""}, {"--redirects", "1", true, ""}, {"--tee", "1", false, " >&2"}}));
    INFO(which << then << to);
    Job job{{.arguments = shell({"--hang_timeout", "4", "--hang_on", "output", which, option, "--log_dir", logs.path()},
                                (then ? moves : "") + "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i" + to + "; sleep 0.5; done")}};
    CHECK(job.wait(patience) == 0);
    CHECK_FALSE(job.says("no sign of progress"));  // it would be ended later than the job
  }
}

TEST_CASE("storms of signals leave no process behind and nothing that hangs", "[lifecycle][storm]") { for_all_seeds(20, storm); }

}  // namespace elrun::test
