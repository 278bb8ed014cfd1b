#include "launcher/report/failure_report.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "launcher/report/events.hpp"
#include "launcher/report/evidence.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_directory.hpp"

using namespace elrun;
using namespace elrun::launcher;
using Catch::Matchers::Contains;
using elrun::test::TemporaryDirectory;
using nlohmann::json;

namespace {

WorkerDeath killed() {
  return {.node = NodeId{"b"},
          .generation = {2, {}},
          .rank = 5,
          .local_rank = 1,
          .host = "pod-1",
          .pid = 4711,
          .signal = SIGKILL,
          .wall_ns = 1'700'000'000'123'456'789,
          .program = "train.py"};
}
WorkerDeath raised() {
  return {.node = NodeId{"a"},
          .generation = {2, {}},
          .rank = 0,
          .host = "pod-0",
          .pid = 99,
          .exit_code = 1,
          .wall_ns = 1'700'000'001'000'000'000,
          .program = "train.py",
          .error_file = "/logs/error.json",
          .error = "ValueError: x",
          .traceback = "Traceback:\n  File y\nValueError: x\n"};
}
FailedJob job(std::vector<WorkerDeath> deaths, int code = 137) {
  return {.run = RunId{"run"},
          .node = NodeId{"here"},
          .exit_code = code,
          .returned = code,
          .cause = "worker 5 ended",
          .deaths = std::move(deaths),
          .wall_ns = 1'700'000'002'000'000'000};
}
std::string local_time(std::int64_t seconds) {
  const std::time_t at = seconds;
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d_%H:%M:%S", std::localtime(&at));
  return text;
}

}  // namespace

TEST_CASE("the box has the parts and labels that torchrun's users know", "[report]") {
  const std::string border(60, '='), rule(60, '-');
  CHECK(failure_box(job({killed(), raised()})) ==
        border + "\ntrain.py FAILED\n" + rule + "\nFailures:\n" +
            "[1]:\n"
            "  time      : " +
            local_time(1'700'000'001) +
            "\n"
            "  host      : pod-0\n"
            "  rank      : 0 (local_rank: 0)\n"
            "  exitcode  : 1 (pid: 99) \n"
            "  error_file: /logs/error.json\n"
            "  traceback : Traceback:\n"
            "    File y\n"
            "  ValueError: x\n"
            "  node      : a (generation: 2)\n" +
            rule + "\nRoot Cause (first observed failure):\n" +
            "[0]:\n"
            "  time      : " +
            local_time(1'700'000'000) +
            "\n"
            "  host      : pod-1\n"
            "  rank      : 5 (local_rank: 1)\n"
            "  exitcode  : -9 (pid: 4711) (SIGKILL)\n"
            "  error_file: <N/A>\n"
            "  traceback : Signal 9 (SIGKILL) received by PID 4711\n"
            "  meaning   : killed from outside: by a person, a scheduler, or the kernel when memory ran out (OOM-killed; see dmesg)\n"
            "  node      : b (generation: 2)\n" +
            border + "\n");
}

TEST_CASE("a lone failure says that there was no other, and a short box is narrow", "[report]") {
  WorkerDeath death = raised();
  death.last_lines = "one\ntwo";
  const std::string box = failure_box(job({death}, 1));
  CHECK_THAT(box, Contains("Failures:\n  <NO_OTHER_FAILURES>\n---"));
  CHECK_THAT(box, Contains("  last lines: \n  one\n  two\n"));
  FailedJob above = job({death}, 1);
  above.words_are_above = true;
  CHECK_THAT(failure_box(above), Contains("  last lines: as above\n"));
  CHECK(box.find('\n') == std::string{"  time      : 2023-11-14_22:13:20"}.size());  // its longest line
  CHECK(failure_box(job({})).empty());
}

TEST_CASE("what several workers said alike is said once", "[report]") {
  WorkerDeath death = raised(), other = death;
  death.last_lines = other.last_lines = "p: no such option";
  other.rank = 7;
  const std::string box = failure_box(job({death, other, other}, 1));
  const auto at = box.find("no such option");
  REQUIRE(at != std::string::npos);
  CHECK(box.find("no such option", at + 1) == std::string::npos);
  CHECK_THAT(box, Contains("  last lines: those of the root cause\n"));
}

TEST_CASE("what a worker wrote cannot move the terminal", "[report]") {
  WorkerDeath death = raised();
  death.traceback = "a\rb\033[2Jc\n\td\n\n";
  CHECK_THAT(failure_box(job({death})), Contains("  traceback : a b [2Jc\n  \td\n  node"));
}

TEST_CASE("what the system saw is the meaning, before what a code usually means", "[report]") {
  WorkerDeath death = killed();
  death.evidence = "OOM-killed by the kernel";
  CHECK_THAT(box_report(job({death})), Contains("\n  meaning: OOM-killed by the kernel\n") && !Contains("dmesg"));
  CHECK_THAT(short_report(job({killed()})), Contains("dmesg") && !Contains("Root Cause"));
}

TEST_CASE("the report says from which checkpoint the job went on last", "[report]") {
  FailedJob failed = job({raised()}, 1);
  CHECK_THAT(short_report(failed), !Contains("went on"));
  CHECK_FALSE(json::parse(failure_json(failed, 4096)).contains("went_on_from"));
  failed.went_on_from = "step 40, from /ck/s40 (a newer one is passed over)\ns60 is whole, but passed over";
  CHECK_THAT(box_report(failed),
             Contains("\n  went on at: step 40, from /ck/s40 (a newer one is passed over)\n  s60 is whole, but passed over\n"));
  CHECK(json::parse(failure_json(failed, 4096))["went_on_from"] == failed.went_on_from);
  failed.deaths.clear();
  CHECK(json::parse(failure_json(failed, 4096))["went_on_from"] == failed.went_on_from);
}

TEST_CASE("the line of JSON says whose exit code it is", "[report]") {
  const json of_program = json::parse(failure_json(job({killed(), raised()}), 4096));
  CHECK(of_program["exit_code"] == 137);
  CHECK(of_program["exit_code_of"] == "program");
  CHECK(of_program["signal"] == "SIGKILL");
  CHECK(of_program["rank"] == 5);
  CHECK(of_program["node"] == "b");
  CHECK(of_program["others"] == 1);
  CHECK(of_program["failed_at"] == "2023-11-14T22:13:20.123Z");
  CHECK(of_program["cause"] == "worker 5 ended");

  WorkerDeath never_ran = raised();
  never_ran.exit_code = 126;
  never_ran.never_ran = true;
  never_ran.evidence = "execute /x: Permission denied";
  const json of_elrun = json::parse(failure_json(job({never_ran}, 126), 4096));
  CHECK(of_elrun["exit_code_of"] == "elrun");
  CHECK(of_elrun["meaning"] == "execute /x: Permission denied");
  CHECK(json::parse(failure_json(job({}, 170), 4096))["exit_code_of"] == "elrun");
}

TEST_CASE("of a worker that had not ended no end is told", "[report]") {
  WorkerDeath lived = raised();
  lived.wall_ns = 0, lived.host = lived.program = "";
  complete_living(lived, "pod-7", "train.py");
  const json line = json::parse(failure_json(job({lived}, 1), 4096));
  CHECK(line["exit_code_of"] == "elrun");
  CHECK_FALSE(line.contains("worker_exit_code"));
  CHECK_FALSE(line.contains("failed_at"));
  CHECK(line["host"] == "pod-7");
  const std::string box = failure_box(job({lived}, 1));
  CHECK_THAT(box, Contains("\ntrain.py FAILED\n") && Contains("  host      : pod-7\n") && Contains("  exitcode  : <N/A> (pid: 99)\n"));
  WorkerDeath ended = killed();
  complete_living(ended, "pod-7", "other.py");
  CHECK(ended == killed());
}

TEST_CASE("the line of JSON is one line that fits, whatever the texts are", "[report][property]") {
  test::for_all_seeds(200, [](Rng& rng) {
    const auto text = [&](std::size_t max) {
      std::string out(rng.below(max), ' ');
      for (char& c : out) c = static_cast<char>(rng.below(256));
      return out;
    };
    WorkerDeath death = raised();
    death.error = text(1024), death.traceback = text(8192) + "the end", death.last_lines = text(4096), death.evidence = text(1024);
    FailedJob failed = job({death, death});
    failed.cause = text(20'000);
    failed.went_on_from = text(20'000);
    const std::string line = failure_json(failed, termination_message_max - 1);
    REQUIRE(line.size() < termination_message_max);
    REQUIRE(line.find('\n') == std::string::npos);
    REQUIRE(json::parse(line)["exit_code"] == 137);
    REQUIRE(json::parse(line)["traceback"].get<std::string>().ends_with("the end"));
  });
}

TEST_CASE("torchrun's exit codes know one failure", "[report]") {
  for (const int code : {0, 1, 3, 66, 78, 126, 137, 170}) CHECK(returned_exit_code(ExitCodes::elrun, code) == code);
  CHECK(returned_exit_code(ExitCodes::torchrun, 0) == 0);
  for (const int code : {1, 3, 66, 78, 126, 137, 170}) CHECK(returned_exit_code(ExitCodes::torchrun, code) == 1);
  FailedJob failed = job({}, 7);
  CHECK_THAT(short_report(failed), Catch::StartsWith("the job failed, exit code 7\n"));
  failed.returned = 1;
  CHECK_THAT(short_report(failed), Catch::StartsWith("the job failed, exit code 7; elrun ends with 1, as torchrun does\n"));
}

// --- evidence -----------------------------------------------------------------------------------------------------

TEST_CASE("out-of-memory kills are counted where the process's own cgroup counts them", "[report]") {
  using Files = std::vector<Path>;
  CHECK(memory_event_files("0::/kubepods/pod1\n", "/cg") == Files{"/cg/kubepods/pod1/memory.events", "/cg/memory.events"});
  CHECK(memory_event_files("0::/\n", "/cg") == Files{"/cg/memory.events", "/cg/memory.events"});
  CHECK(memory_event_files("0::/../../outside\n", "/cg").front() == "/cg/memory.events");
  CHECK(memory_event_files("12:cpu,cpuacct:/a\n7:memory:/docker/x\n0::/\n", "/cg") ==
        Files{"/cg/memory/docker/x/memory.oom_control", "/cg/memory/memory.oom_control", "/cg/memory.events", "/cg/memory.events"});
  for (const char* text : {"", ":", "a\nb:c", "::"}) CHECK_NOTHROW(memory_event_files(text, "/cg"));
  CHECK(oom_kills_of("low 0\noom 3\noom_kill 2\noom_group_kill 0\n") == 2);
  CHECK(oom_kills_of("oom_kill_disable 0\nunder_oom 0\noom_kill 5") == 5);
  CHECK_FALSE(oom_kills_of("low 0\noom_kill_disable 1\n"));
  CHECK_FALSE(oom_kills_of("oom_kill many\n"));
}

TEST_CASE("refused processes are counted where the process's own cgroup counts them", "[report]") {
  using Files = std::vector<Path>;
  CHECK(pids_event_files("0::/kubepods/pod1\n", "/cg") == Files{"/cg/kubepods/pod1/pids.events", "/cg/pids.events"});
  CHECK(pids_event_files("8:pids:/docker/x\n0::/\n", "/cg") ==
        Files{"/cg/pids/docker/x/pids.events", "/cg/pids/pids.events", "/cg/pids.events", "/cg/pids.events"});
  CHECK(refusals_of("max 3\n") == 3);
  CHECK_FALSE(refusals_of("maximum 3\nmax many\n"));
}

TEST_CASE("what a cgroup has counted since a worker started, and its limits", "[report]") {
  const TemporaryDirectory directory;
  const Path root{directory.path()};
  const auto write = [&](const char* name, const char* text) { std::ofstream{root / "pod" / name} << text; };
  std::filesystem::create_directory(root / "pod");
  std::ofstream{root / "self"} << "0::/pod\n";
  write("memory.events", "oom_kill 1\n"), write("pids.events", "max 5\n");
  write("memory.max", "max\n"), write("pids.max", "64\n"), write("pids.current", "63\n");
  const CgroupWatch watch{root, root / "self"};
  const CgroupCounts before = watch.counts();
  CHECK(before.oom_kills == 1);
  CHECK(before.refusals == 5);
  write("pids.events", "max 8\n");
  const SystemEvidence since = watch.since(before, {});
  CHECK(since.oom_kills == 0);
  CHECK(since.refusals == 3);
  CHECK(since.refusal_counter == (root / "pod" / "pids.events").string());
  CHECK(since.pids_limit == 64);
  CHECK_FALSE(since.memory_limit);  // "max"
  CHECK(watch.limits().pids_used == 63);
  const CgroupWatch none{root / "nothing", root / "nobody"};
  CHECK(none.counts().refusals == 0);
  CHECK(none.since({}, {}).refusals == 0);
}

TEST_CASE("the limit that was reached is named for a call that fails", "[report]") {
  const Limits all{.pids = 64,
                   .pids_used = 63,
                   .memory = std::uint64_t{64} << 20,
                   .memory_used = std::uint64_t{60} << 20,
                   .processes = 100,
                   .descriptors = 256};
  CHECK_THAT(limit_behind(EAGAIN, all),
             Contains("pids.max of this container is 64, and 63 processes and threads run in it") && Contains("podPidsLimit"));
  CHECK_THAT(limit_behind(EMFILE, all), Contains("at most 256 file descriptors are allowed") && Contains("ulimit -n"));
  CHECK_THAT(limit_behind(ENFILE, all), Contains("fs.file-max"));
  CHECK_THAT(limit_behind(ENOMEM, all), Contains("the container's memory limit is 64 MiB, of which 60 MiB is used"));
  Limits roomy = all;
  roomy.pids_used = 10;
  CHECK_THAT(limit_behind(EAGAIN, roomy), Contains("at most 100 processes and threads of this user are allowed"));
  roomy.processes.reset();
  CHECK(limit_behind(EAGAIN, roomy).empty());  // the machine's own, perhaps: it is not guessed
  for (const int error : {EAGAIN, EMFILE, ENOMEM, EACCES}) CHECK(limit_behind(error, {}).empty());
  CHECK(limit_behind(EACCES, all).empty());
}

TEST_CASE("an OOM kill explains a SIGKILL, a small /dev/shm a SIGBUS, and neither anything else", "[report]") {
  SystemEvidence c{.oom_kills = 1,
                   .oom_counter = "/cg/memory.events",
                   .memory_limit = std::uint64_t{64} << 20,
                   .shm_bytes = std::uint64_t{64} << 20,
                   .shm_free = 0};
  CHECK_THAT(evidence_of({.signal = SIGKILL}, c), Contains("OOM-killed") && Contains("limit is 64 MiB"));
  CHECK_THAT(evidence_of({.signal = SIGBUS}, c), Contains("/dev/shm") && Contains("64 MiB"));
  CHECK(evidence_of({.signal = SIGSEGV}, c).empty());
  CHECK(evidence_of({.exit_code = 1}, c).empty());
  c.oom_kills = 0;
  c.shm_bytes = std::uint64_t{64} << 30;
  CHECK(evidence_of({.signal = SIGKILL}, c).empty());
  CHECK(evidence_of({.signal = SIGBUS}, c).empty());
  c.refusals = 3, c.refusal_counter = "/cg/pids.events", c.pids_limit = 64;
  CHECK_THAT(evidence_of({.exit_code = 1}, c),
             Contains("processes or threads were refused: /cg/pids.events counts 3 more, the limit is 64; raise pids.max"));
  CHECK(evidence_of({.exit_code = 0}, c).empty());
  c.refusals = 0;
  c.full_log_directory = "/logs/a";
  CHECK_THAT(evidence_of({.exit_code = 1}, c), Contains("the disk of its log files is full (/logs/a)"));
}

// --- events -------------------------------------------------------------------------------------------------------

TEST_CASE("an event is one line, in the form that torchrun's has", "[report]") {
  const EventSource source{RunId{"run"}, "pod-0", "trainer", "train.py", "c10d"};
  WorkerEvent event{.state = "FAILED",
                    .worker = WorkerEvent::Worker{5, 1, 4711, -9},
                    .group_rank = 2,
                    .nodes = 3,
                    .world_size = 6,
                    .restarts = 1,
                    .wall_ns = 1'700'000'000'123'456'789};
  const json line = json::parse(event_line(source, event));
  CHECK(line["name"] == "torchelastic.worker.status.FAILED");
  CHECK(line["source"] == "WORKER");
  CHECK(line["timestamp"] == 1'700'000'000);
  const json& m = line["metadata"];
  CHECK(m["run_id"] == "run");
  CHECK(m["global_rank"] == 5);
  CHECK(m["group_rank"] == 2);
  CHECK(m["worker_id"] == "4711");
  CHECK(m["role"] == "trainer");
  CHECK(m["hostname"] == "pod-0");
  CHECK(m["state"] == "FAILED");
  CHECK(m["agent_restarts"] == 1);
  CHECK(
      json::parse(m["metadata"].get<std::string>()) ==
      json::parse(
          R"({"group_world_size":3,"entry_point":"train.py","local_rank":[1],"role_rank":[5],"role_world_size":[6],"exit_code":[-9],"worker_pid":[4711]})"));
  event.worker.reset();
  const json of_agent = json::parse(event_line(source, event));
  CHECK(of_agent["source"] == "AGENT");
  CHECK(of_agent["metadata"]["global_rank"].is_null());
  CHECK(json::parse(of_agent["metadata"]["metadata"].get<std::string>()) ==
        json::parse(R"({"group_world_size":3,"entry_point":"train.py"})"));
}
