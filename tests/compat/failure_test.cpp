// Failures, as the compatibility list has them: statements 43 to 55, and 74.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/compat/support.hpp"

using namespace elrun::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

// What the programs below begin with: who am I, leave a sign, wait for one, write what torch's `record` writes.
constexpr const char* prelude = R"(import json, os, signal, subprocess, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["ELRUN_RESTART_COUNT"])
folder = os.path.dirname(os.path.abspath(__file__))
def leave(name, text=""):
    with open(os.path.join(folder, name + ".new"), "w") as f: f.write(text)
    os.rename(os.path.join(folder, name + ".new"), os.path.join(folder, name))
def wait(name):
    while not os.path.exists(os.path.join(folder, name)): time.sleep(0.005)
def record(error, second=None):
    text = {"message": {"message": error, "extraInfo": {"py_callstack": "Traceback:\n  File x\n" + error + "\n", "timestamp": str(second or int(time.time()))}}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f: json.dump(text, f)
)";

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream{path, std::ios::binary}.rdbuf();
  return text.str();
}

/// A meeting of agents that run one Python program.
struct Programs : Meeting {
  explicit Programs(const std::string& body) { std::ofstream{program()} << prelude << body; }
  [[nodiscard]] std::string path(const std::string& name) const { return folder.path() + "/" + name; }
  [[nodiscard]] std::string program() const { return path("train.py"); }
  [[nodiscard]] Job::Setting one_node(std::vector<std::string> options, std::map<std::string, std::string> environment = {}) const {
    return alone(joined(std::move(options), {program()}), std::move(environment));
  }
  [[nodiscard]] Job::Setting of_two(std::vector<std::string> options) const {
    return node("2", joined(std::move(options), {"--rdzv_conf", "last_call_timeout=1", program()}));
  }
};

/// The block behind "Root Cause".
std::string root_cause(const std::string& output) {
  const auto begin = output.find("Root Cause (first observed failure):\n");
  return begin == std::string::npos ? "" : output.substr(begin, output.find("\n====", begin) - begin);
}

}  // namespace

TEST_CASE("43 a worker's exit code comes through, 1 if torchrun's codes are asked for; the box names the worker", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{"if rank == 1: sys.exit(3)\ntime.sleep(600)\n"};
  const bool as_torchrun = GENERATE(false, true);
  Job job{programs.one_node({"--nproc_per_node", "2", "--exit-codes", as_torchrun ? "torchrun" : "elrun"})};
  CHECK(job.wait(patience) == (as_torchrun ? 1 : 3));
  INFO(job.output());
  CHECK(job.says("train.py FAILED\n---"));
  CHECK(job.says("Failures:\n  <NO_OTHER_FAILURES>\n"));
  const std::string root = root_cause(job.output());
  CHECK_THAT(root, Contains("  rank      : 1 (local_rank: 1)\n") && Contains("  exitcode  : 3 (pid: ") && Contains("  time      : 2") &&
                       Contains("  host      : "));
  CHECK(reported_times(job.output(), "Root Cause") == 1);
}

TEST_CASE("43 under the name torchrun the exit codes are torchrun's", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{"sys.exit(3)\n"};
  std::filesystem::create_symlink(program_path("elrun"), programs.path("torchrun"));
  Job::Setting setting = programs.one_node({});
  setting.program = programs.path("torchrun");
  Job job{std::move(setting)};
  CHECK(job.wait(patience) == 1);
}

TEST_CASE("44 a signal is named, and its number is negative", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{"os.kill(os.getpid(), signal.SIGKILL)\n"};
  Job job{programs.one_node({})};
  CHECK(job.wait(patience) == 128 + SIGKILL);
  CHECK_THAT(root_cause(job.output()),
             Contains("  exitcode  : -9 (pid: ") && Contains(") (SIGKILL)\n") && Contains("Signal 9 (SIGKILL) received by PID "));
}

TEST_CASE("45 the error record of a worker is shown, and handed on with its code", "[compat][process][torch]") {
  if (!has_python()) return;
  SECTION("as any program may write it") {
    const Programs programs{"if rank == 1:\n    record('ValueError: no such thing')\n    sys.exit(4)\ntime.sleep(600)\n"};
    Job job{programs.one_node({"--nproc_per_node", "2", "--log_dir", programs.path("logs")},
                              {{"TORCHELASTIC_ERROR_FILE", programs.path("reply.json")}})};
    CHECK(job.wait(patience) == 4);
    INFO(job.output());
    const std::string root = root_cause(job.output());
    CHECK_THAT(root, Contains("  traceback : Traceback:\n    File x\n  ValueError: no such thing\n"));
    CHECK_THAT(root, Contains("  error_file: " + programs.path("logs")) && Contains("/attempt_0/1/error.json\n"));
    const json reply = json::parse(text_of(programs.path("reply.json")))["message"];
    CHECK(reply["message"] == "ValueError: no such thing");
    CHECK(reply["errorCode"] == 4);
    CHECK_THAT(reply["extraInfo"]["py_callstack"].get<std::string>(), Contains("File x"));
    CHECK(reply["extraInfo"]["timestamp"].is_string());
  }
  SECTION("as torch writes it") {
    if (!has_torch()) return;
    const Meeting meeting;
    const std::string reply_path = meeting.folder.path() + "/reply.json";
    Job job{meeting.alone({"--nproc_per_node", "2", sample("record.py"), "--fail-rank", "1", "--others-wait"},
                          {{"TORCHELASTIC_ERROR_FILE", reply_path}})};
    CHECK(job.wait(patience) == 1);
    INFO(job.output());
    CHECK_THAT(root_cause(job.output()),
               Contains("Traceback (most recent call last):") && Contains("ValueError: rank 1 was asked to fail, time 1"));
    const json reply = json::parse(text_of(reply_path))["message"];
    CHECK(reply["message"] == "ValueError: rank 1 was asked to fail, time 1");
    CHECK(reply["errorCode"] == 1);
  }
}

TEST_CASE("46 an error record of plain text is read, and one that is none does no harm", "[compat][process]") {
  if (!has_python()) return;
  SECTION("plain text") {
    const Programs programs{
        "with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as f: json.dump({'message': 'the disk is full', 'timestamp': int(time.time())}, f)\nsys.exit(5)\n"};
    Job job{programs.one_node({})};
    CHECK(job.wait(patience) == 5);
    CHECK_THAT(root_cause(job.output()), Contains("  traceback : the disk is full\n"));
  }
  const std::string body = GENERATE("f.write(b'{\"message\"' + bytes(range(256)))", "f.write(b'[' * 300000)", "f.truncate(1 << 40)",
                                    "os.remove(f.name); os.mkfifo(f.name)", "os.remove(f.name); os.symlink('/dev/zero', f.name)");
  SECTION("none: " + body) {
    const Programs programs{"with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'wb') as f: " + body + "\nsys.exit(5)\n"};
    Job job{programs.one_node({})};
    CHECK(job.wait(patience) == 5);
    INFO(job.output());
    CHECK_THAT(root_cause(job.output()), Contains("exitcode  : 5") && Contains("no error record that elrun can read"));
  }
}

TEST_CASE("47 what failed first is the root cause, though it was still alive when another died", "[compat][process]") {
  if (!has_python()) return;
  // Both within one second of the record's clock: only the time of its file tells them apart, and that is 0.6 s, set here so that it does not matter when they
  // are run. Nodes tell how long ago it was, so what is nearer than a message takes may change places.
  const char* const body =
      "def at(second, part): os.utime(os.environ['TORCHELASTIC_ERROR_FILE'], (second + part, second + part))\n"
      "if rank == 0:\n    second = int(time.time()) + 1\n    record('RuntimeError: the first', second)\n    at(second, 0.2)\n"
      "    leave('recorded', str(second))\n    time.sleep(600)\n"
      "wait('recorded')\nsecond = int(open(os.path.join(folder, 'recorded')).read())\nrecord('RuntimeError: connection closed by peer', second)\n"
      "at(second, 0.8)\nwhile time.time() < second + 1: time.sleep(0.05)\nsys.exit(5)\n";
  const auto check = [](const std::string& output) {
    INFO(output);
    const std::string root = root_cause(output);
    CHECK_THAT(root, Contains("  rank      : 0 (") && Contains("RuntimeError: the first"));
    const std::string others = output.substr(0, output.find("Root Cause"));
    CHECK_THAT(others, Contains("[1]:\n") && Contains("  rank      : 1 (") && Contains("connection closed by peer"));
  };
  // What is heard of 2 s later is not waited for: then the root cause is what is known, with its code. Where the system does not run worker 0 for so long after
  // SIGTERM, it is tried again.
  constexpr int tries = 4, of_the_second = 5;
  SECTION("of one node") {
    for (int i = 0, code = of_the_second; i < tries && code == of_the_second; ++i) {
      const Programs programs{body};
      Job job{programs.one_node({"--nproc_per_node", "2"})};
      code = job.wait(patience);
      if (code == of_the_second && i + 1 < tries) continue;
      CHECK(code == 1);  // what Python would have ended with
      check(job.output());
    }
  }
  SECTION("of two nodes") {
    for (int i = 0, code = of_the_second; i < tries && code == of_the_second; ++i) {
      const Programs programs{body};
      Job a{programs.of_two({"--node_rank", "0"})};
      REQUIRE(a.line("serving the rendezvous", patience));
      Job b{programs.of_two({"--node_rank", "1"})};
      code = a.wait(patience);
      CHECK(b.wait(patience) == code);
      if (code == of_the_second && i + 1 < tries) continue;
      CHECK(code == 1);
      check(a.output());
    }
  }
}

TEST_CASE("48 the others are asked as groups, and killed after --shutdown-timeout, also for a restart", "[compat][process]") {
  if (!has_python()) return;
  bool asked = false;
  for (int tries = 0; tries < 4 && !asked; ++tries) {  // where the system does not run the child for these 3 s, it is tried again
    const Programs programs{
        "if attempt > 0: sys.exit(0)\n"
        "if rank == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    child = 'import os, signal, sys, time\\nsignal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1], \"w\"))\\nopen(sys.argv[2], \"w\")\\nwhile True: time.sleep(0.05)'\n"
        "    subprocess.Popen([sys.executable, '-c', child, os.path.join(folder, 'asked'), os.path.join(folder, 'ready')])\n"
        "    time.sleep(600)\n"
        "wait('ready')\nsys.exit(3)\n"};
    Job job{programs.one_node({"--nproc_per_node", "2", "--max_restarts", "1", "--shutdown-timeout", "3"})};
    CHECK(job.wait(patience) == 0);
    INFO(job.output());
    asked = std::filesystem::exists(programs.path("asked"));
    CHECK(job.says("1 worker did not end in time: killed"));
    CHECK(job.says("generation 2"));
  }
  CHECK(asked);
}

TEST_CASE("49 what a failed worker started is gone before the next attempt", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{
      "def alive(pid):\n    try: return open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1][0] != 'Z'\n    except OSError: return False\n"
      "if attempt == 0:\n    leave('pid', str(subprocess.Popen(['sleep', '600']).pid))\n    sys.exit(3)\n"
      "print('the grandchild is', 'alive' if alive(int(open(os.path.join(folder, 'pid')).read())) else 'gone', flush=True)\n"};
  Job job{programs.one_node({"--max_restarts", "1"})};
  CHECK(job.wait(patience) == 0);
  CHECK(job.says("the grandchild is gone"));
}

TEST_CASE("50 --max-restarts 2: two failures end well, three do not, and each attempt knows its number", "[compat][process]") {
  if (!has_python()) return;
  const auto [failures, code] = GENERATE(table<int, int>({{2, 0}, {3, 7}}));
  const Programs programs{"count = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\nprint(f'count={count}', flush=True)\nif count < " +
                          std::to_string(failures) + ": sys.exit(7)\n"};
  Job job{programs.one_node({"--max-restarts", "2"})};
  CHECK(job.wait(patience) == code);
  for (const char* count : {"count=0", "count=1", "count=2"}) CHECK(job.says(count));
  CHECK_FALSE(job.says("count=3"));
  CHECK(job.says("all 2 restarts (--max_restarts) are used") == (code != 0));
}

TEST_CASE("51 a worker that is done early is waited for by nobody", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{
      "if rank == 0:\n    leave('done')\n    sys.exit(0)\nwait('done')\ntime.sleep(1)\nprint('rank 1 is done', flush=True)\n"};
  Job job{programs.one_node({"--nproc_per_node", "2", "--max-restarts", "3"})};
  CHECK(job.wait(patience) == 0);
  CHECK(job.says("rank 1 is done"));
  CHECK_FALSE(job.says("generation 2"));
}

TEST_CASE("52 a program that is not there is said to be so, before anything starts", "[compat][process]") {
  const Meeting meeting;
  const std::string place = meeting.folder.path() + "/termination-log";
  struct Case {
    std::vector<std::string> program;
    int code;
    std::string word;
  };
  const Case missing = GENERATE(Case{{"nosuch.py"}, 66, "no such script"}, Case{{"--no-python", "/no/such"}, 127, "not found"});
  const bool as_torchrun = GENERATE(false, true);
  std::ofstream{place} << "old text";
  const int code = as_torchrun ? 1 : missing.code;
  Job job{meeting.alone(joined({as_torchrun ? "--exit-codes=torchrun" : "--exit-codes=elrun"}, missing.program),
                        {{"ELRUN_TERMINATION_LOG", place}})};
  CHECK(job.wait(patience) == code);
  CHECK(job.says(missing.program.back() + ": " + missing.word));
  const json line = json::parse(text_of(place));
  CHECK(line["exit_code"] == code);
  CHECK(line["exit_code_of"] == "elrun");
  CHECK_THAT(line["cause"].get<std::string>(), Contains(missing.word));
}

TEST_CASE("53 a failure on one node restarts both; only the job-wide count grows on the other", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{
      "e = os.environ\nprint('group', e['GROUP_RANK'], 'attempt', attempt, 'own', e['TORCHELASTIC_RESTART_COUNT'], 'cause', e['ELRUN_RESTART_CAUSE'], flush=True)\n"
      "leave(f'here{attempt}{rank}')\nwait(f'here{attempt}{1 - rank}')\n"
      "if attempt == 0:\n    if rank == 1: record('ValueError: torn'); sys.exit(3)\n    time.sleep(600)\n"};
  Job a{programs.of_two({"--node_rank", "0", "--max_restarts", "1"})};
  REQUIRE(a.line("serving the rendezvous", patience));
  Job b{programs.of_two({"--node_rank", "1", "--max_restarts", "1"})};
  CHECK(a.wait(patience) == 0);
  CHECK(b.wait(patience) == 0);
  INFO(a.output() + b.output());
  CHECK(a.says("group 0 attempt 0 own 0 cause \n"));
  CHECK_THAT(a.output(), Contains("group 0 attempt 1 own 0 cause worker 1 (node ") && Contains("ended by exit code 3: ValueError: torn\n"));
  CHECK(b.says("group 1 attempt 1 own 1 cause worker 1 (node "));
}

TEST_CASE("54 when no restart is left all nodes end, with the root cause's code", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{"if rank == 1: print('my last words', file=sys.stderr, flush=True); sys.exit(9)\ntime.sleep(600)\n"};
  SECTION("the one that coordinates and the one that failed tell all of it") {
    Job a{programs.of_two({"--node_rank", "0"})};
    REQUIRE(a.line("serving the rendezvous", patience));
    Job b{programs.of_two({"--node_rank", "1", "--redirects", "2", "--log_dir", programs.path("logs")})};
    CHECK(a.wait(patience) == 9);
    CHECK(b.wait(patience) == 9);
    for (const Job* node : {&a, &b}) {
      INFO(node->output());
      CHECK_THAT(root_cause(node->output()),
                 Contains("  rank      : 1 (local_rank: 0)\n") && Contains("exitcode  : 9") && Contains("my last words"));
      CHECK(reported_times(node->output(), "Root Cause") == 1);
    }
  }
  SECTION("so does one that only coordinates; others tell the cause") {
    Job store{{.arguments = {"store", "--host", "127.0.0.1", "--port", std::to_string(programs.port)}}};
    REQUIRE(store.line("serving the rendezvous", patience));
    Job a{programs.of_two({"--node_rank", "0", "--exit-codes=torchrun"})}, b{programs.of_two({"--node_rank", "1"})};
    CHECK(a.wait(patience) == 1);
    CHECK(b.wait(patience) == 9);
    store.wait(patience);
    INFO(store.output());
    CHECK_THAT(root_cause(store.output()), Contains("  rank      : 1 (local_rank: 0)\n"));
    CHECK(root_cause(a.output()).empty());
    CHECK(a.says("ended by exit code 9"));
  }
}

TEST_CASE("55 one node is done, the other fails with restarts left: one verdict for both, in seconds", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{
      "if rank == 0:\n    leave('done')\n    sys.exit(0)\nwait('done')\ntime.sleep(0.5)\nif attempt == 0: sys.exit(3)\n"};
  Job a{programs.of_two({"--node_rank", "0", "--max_restarts", "1"})};
  REQUIRE(a.line("serving the rendezvous", patience));
  Job b{programs.of_two({"--node_rank", "1", "--max_restarts", "1"})};
  CHECK(a.wait(patience) == 0);
  CHECK(b.wait(patience) == 0);
  CHECK(a.says("generation 2"));
}

TEST_CASE("74 events are JSON, in torchrun's order", "[compat][process]") {
  if (!has_python()) return;
  const auto events = [](const std::string& output) {
    std::vector<std::string> states;
    std::istringstream lines{output};
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(R"({"name":"torchelastic)"))
        if (const json event = json::parse(line, nullptr, false); !event.is_discarded())
          states.push_back(event["source"].get<std::string>() + " " + event["metadata"]["state"].get<std::string>());
    return states;
  };
  using States = std::vector<std::string>;
  SECTION("of a clean run") {
    const Programs programs{"pass\n"};
    Job job{programs.one_node({"--nproc_per_node", "2", "--event-log-handler", "console"})};
    CHECK(job.wait(patience) == 0);
    INFO(job.output());
    CHECK(events(job.output()) == States{"AGENT RENDEZVOUS", "AGENT ASSIGN_WORKER_RANKS", "WORKER START", "WORKER START",
                                         "WORKER SUCCEEDED", "WORKER SUCCEEDED", "AGENT SUCCEEDED"});
  }
  SECTION("of one that fails, into a file, with a line about the failure") {
    const Programs programs{"if rank == 1: sys.exit(3)\ntime.sleep(600)\n"};
    Job job{programs.one_node({"--nproc_per_node", "2", "--event-log", programs.path("events")})};
    CHECK(job.wait(patience) == 3);
    const std::string text = text_of(programs.path("events"));
    INFO(text);
    CHECK(events(text) == States{"AGENT RENDEZVOUS", "AGENT ASSIGN_WORKER_RANKS", "WORKER START", "WORKER START", "WORKER TERMINATED",
                                 "WORKER FAILED", "AGENT FAILED"});
    CHECK(events(job.output()).empty());
    const auto last = text.rfind("\n{", text.size() - 2);
    const json failure = json::parse(text.substr(last + 1));
    CHECK(failure["event"] == "elrun.job.failed");
    CHECK(failure["exit_code"] == 3);
    CHECK(failure["exit_code_of"] == "program");
    CHECK(failure["rank"] == 1);
  }
}

TEST_CASE("a container's termination log says why, in one bounded line", "[compat][process]") {
  if (!has_python()) return;
  const Programs programs{"record('ValueError: ' + 'x' * 100000)\nsys.exit(65)\n"};
  const std::string place = programs.path("termination-log");
  std::ofstream{place} << std::string(10'000, 'o');
  Job job{programs.one_node({}, {{"ELRUN_TERMINATION_LOG", place}})};
  CHECK(job.wait(patience) == 65);  // between 64 and 127: the program's, and said to be
  const std::string text = text_of(place);
  CHECK(text.size() <= 4096);
  const json line = json::parse(text);
  CHECK(line["exit_code"] == 65);
  CHECK(line["exit_code_of"] == "program");
  CHECK_THAT(line["error"].get<std::string>(), Catch::Matchers::StartsWith("ValueError: xxx"));
  SECTION("where there is none, none is made") {
    std::filesystem::remove(place);
    Job again{programs.one_node({}, {{"ELRUN_TERMINATION_LOG", place}})};
    CHECK(again.wait(patience) == 65);
    CHECK_FALSE(std::filesystem::exists(place));
  }
}

TEST_CASE("a worker that was OOM-killed is reported as OOM-killed", "[compat][process]") {
  if (!has_python()) return;
  namespace fs = std::filesystem;
  const std::string name = "elrun-test-" + std::to_string(getpid());
  struct Group {
    fs::path path;
    ~Group() {
      std::error_code ignored;
      if (!path.empty()) fs::remove(path, ignored);
    }
  } group;
  for (const auto& [root, limit] :
       {std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"}, std::pair{"/sys/fs/cgroup", "memory.max"}}) {
    std::error_code error;
    const fs::path candidate = fs::path{root} / name;
    if (!fs::exists(root) || !fs::create_directory(candidate, error)) continue;
    if (fs::exists(candidate / limit) && std::ofstream{candidate / limit} << (256 << 20) << std::flush) {
      group.path = candidate;
      break;
    }
    fs::remove(candidate, error);
  }
  if (group.path.empty()) {
    std::printf("SKIPPED: no memory cgroup can be made here\n");
    return;
  }
  const Programs programs{"hold = []\nwhile True: hold.append(bytearray(os.urandom(1)) * (16 << 20))\n"};
  Job::Setting setting = programs.one_node({});
  std::string command = "echo $$ > " + (group.path / "cgroup.procs").string() + " && exec \"$0\" \"$@\"";
  setting.arguments = joined({"-c", std::move(command), program_path("elrun")}, setting.arguments);
  setting.program = "/bin/sh";
  Job job{std::move(setting)};
  CHECK(job.wait(patience) == 128 + SIGKILL);
  INFO(job.output());
  CHECK_THAT(root_cause(job.output()), Contains("OOM-killed by the kernel") && Contains("the limit is 256 MiB"));
}
