// `elrun chaos` with real jobs: the verdict, what it leaves behind, and what it refuses before anything starts.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/chaos_folder.hpp"

using namespace elrun::test;
namespace fs = std::filesystem;

namespace {

/// A worker that prints a state which says how often it was restarted. With the run's directory as its argument it goes on in the disturbed run until it was restarted, however slow
/// the machine is.
constexpr const char* forgetful =
    "i=0\nwhile [ $i -lt 20 ] || { [ \"${1##*/}\" = disturbed ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; }; do\n"
    "  i=$((i+1)); [ \"$RANK\" = 0 ] && echo step=$i; sleep 0.1\ndone\n"
    "[ \"$RANK\" != 0 ] || echo \"done state=result$TORCHELASTIC_RESTART_COUNT\"\n";

}  // namespace

TEST_CASE("a Job under kill, stop, slow and the loss of a node ends in the state of the undisturbed run", "[chaos][process]") {
  const ChaosFolder folder;  // with both nodes, so that the job waits for the one that was lost
  folder.write(
      "plan",
      "step 10 kill rank 1\nstep 30 stop rank 0 for 300ms\nstep 40 slow rank 2 to 30% for 500ms\nstep 70 kill-agent node 1 for 500ms\n");
  const auto chaos = folder.start(std::vector<std::string>{"--plan", folder / "plan", "--nnodes", "2", "--nproc_per_node", "2", "--json",
                                                           "--limit", "200s", "--checkpoint_root", "{run}/ck"} +
                                  gpt_words(folder, 1000, {"--checkpoint", "{run}/ck", "--every", "150"}));
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  REQUIRE(ended.code == 0);
  const auto report = report_of(ended);
  REQUIRE(report.is_object());
  CHECK(report["exit_code"] == 0);
  CHECK(report["undisturbed"]["state"] == report["disturbed"]["state"]);
  CHECK(report["checkpoints"]["outcome"] == "equal");
  REQUIRE(report["faults"].size() == 4);
  for (const auto& fault : report["faults"]) CHECK(fault["began_seconds"].is_number());
  CHECK(report["disturbed"]["step"] == 1000);
  CHECK(report["disturbed"]["time"]["incidents"] >= 1);  // both losses may fall into one: the node goes before the next generation begins
  CHECK(report["share_of_wall_time"] > 0);
  CHECK(fs::exists(folder.work() + "/plan"));
  CHECK(fs::exists(folder.work() + "/disturbed/node1.log"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("the coordinator can be lost, as an agent or as a store", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "step 20 coordinator for 500ms\n");
  std::vector<std::string> words{"--plan", folder / "plan", "--nnodes", "1:2", "--rdzv_conf", "last_call_timeout=1"};
  if (GENERATE(false, true)) words.emplace_back("--store");
  const auto chaos = folder.start(words + gpt_words(folder, 1000));
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.says("the final states are equal: "));
  CHECK(ended.says(words.back() == "--store" ? "`elrun store` is lost" : "serves the rendezvous, is lost"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a program that gives another result when it is restarted is found out", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "1s kill rank 1\n");
  const auto chaos = folder.start(
      {"--plan", folder / "plan", "--nproc_per_node", "2", "--limit", "200s", "--no_python", folder.script(forgetful), "{run}"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 1);
  CHECK(ended.says("the final states differ: undisturbed result0, disturbed result1"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a rehearsal that fails reports nothing where the job of its machine does", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "1ms kill rank 0\n"), folder.write("termination", "");
  const auto chaos =
      folder.start({"--plan", folder / "plan", "--nproc_per_node", "1", "--limit", "200s", "--max_restarts", "0", "--no_python",
                    folder.script("env | grep KUBEFLOW\n"
                                  "while [ \"${1##*/}\" = disturbed ]; do sleep 0.1; done\necho state=a\n"),
                    "{run}"},
                   {{"KUBEFLOW_TRAINER_SERVER_URL", "http://127.0.0.1:1/"},
                    {"KUBEFLOW_TRAINER_SERVER_TOKEN", "/token"},
                    {"ELRUN_TERMINATION_LOG", folder / "termination"},
                    {"TORCHELASTIC_ERROR_FILE", folder / "error.json"}});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 2);
  CHECK(fs::file_size(folder / "termination") == 0);
  CHECK_FALSE(fs::exists(folder / "error.json"));
  const auto text = [&](const std::string& run) {
    std::ifstream file{folder.work() + "/" + run + "/node0.log"};
    return std::string{std::istreambuf_iterator<char>{file}, {}};
  };
  const std::string log = text("undisturbed") + text("disturbed");
  CHECK(log.find("state=a") != std::string::npos);
  CHECK(log.find("KUBEFLOW") == std::string::npos);
  CHECK(folder.left_behind().empty());
}

TEST_CASE("ranks that end in different states are found out, and named", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "1s kill rank 0\n");
  const bool from_the_beginning = GENERATE(false, true);  // or after the restart
  const auto chaos =
      folder.start({"--plan", folder / "plan", "--nproc_per_node", "2", "--limit", "200s", "--no_python",
                    folder.script("while [ \"${1##*/}\" = disturbed ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ]; do sleep 0.1; done\n"
                                  "[ $((RANK * ($TORCHELASTIC_RESTART_COUNT + $2))) = 0 ] && echo state=a || echo state=b\n"),
                    "{run}", from_the_beginning ? "1" : "0"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == (from_the_beginning ? 3 : 1));
  CHECK(ended.says(from_the_beginning ? "the undisturbed run has no single final state: a (rank 0), b (rank 1)"
                                      : "the final states differ: undisturbed a, disturbed a (rank 0), b (rank 1)"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a node that fails where another one succeeds is a failure of the job", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "1ms kill rank 1\n");
  // Each node is a job of its own here, which another one's failure does not end. Node 0 goes on until the worker of node 1 is dead.
  const auto chaos = folder.start({"--plan", folder / "plan", "--nnodes", "2", "--nproc_per_node", "1", "--limit", "200s", "--launcher",
                                   program_path("elrun") + " --max_restarts 0 --no_python", "--",
                                   folder.script("case ${1##*/}$2 in\n"
                                                 "  disturbed0) while [ ! -s $1/pid ] || kill -0 $(cat $1/pid); do sleep 0.1; done;;\n"
                                                 "  disturbed1) echo $$ > $1/pid; while true; do sleep 0.1; done;;\nesac\necho state=a\n"),
                                   "{run}", "{node}"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 2);
  CHECK(ended.says("the disturbed job did not finish: node 1 ended with exit code 137, though another node succeeded"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a node that goes on after another one has succeeded is waited for, and heard", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "1ms stop rank 0 for 10ms\n");
  const bool hangs = GENERATE(false, true);
  // Each node is a job of its own here. Node 1 of the disturbed run prints another state when node 0 has ended for long, or nothing.
  const auto chaos = folder.start(
      {"--plan", folder / "plan", "--nnodes", "2", "--limit", hangs ? "20s" : "200s", "--launcher", program_path("elrun") + " --no_python",
       "--",
       folder.script("[ $2 = 0 ] || sleep 6\ncase ${1##*/}$2$3 in\n  disturbed1word) echo state=b;;\n  disturbed1hang) sleep 1000;;\n"
                     "  *) sleep 3; echo state=a;;\nesac\n"),
       "{run}", "{node}", hangs ? "hang" : "word"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == (hangs ? 2 : 1));
  CHECK(ended.says(hangs ? "did not finish: it was ended, for it was over its limit"
                         : "the final states differ: undisturbed a, disturbed a (rank 0), b (rank 1)"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a node that was away for a moment and works again is judged as any other", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "100ms kill-agent node 1 for 100ms\n");
  // Each node is a job of its own here. Node 0 ends when node 1, which was lost, has worked again for two seconds.
  const auto chaos = folder.start(
      {"--plan", folder / "plan", "--nnodes", "2", "--limit", "200s", "--launcher", program_path("elrun") + " --no_python", "--",
       folder.script(
           "d=$1/lives; mkdir -p $d\nwait_for() { while [ ! -e $d/$1 ]; do sleep 0.05; done; }\n"
           "case ${1##*/}$2 in\n"
           "  disturbed0) wait_for 1.2; sleep 2;;\n"
           "  disturbed1) if [ -e $d/1.1 ]; then touch $d/1.2; echo again; sleep 5; echo state=b; exit 7; else touch $d/1.1; sleep 1000; fi;;\n"
           "esac\necho state=a\n"),
       "{run}", "{node}"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 2);
  CHECK(ended.says("did not finish: node 1 ended with exit code 7, though another node succeeded"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a worker that is stopped goes on in its time when another node has ended before", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "100ms stop rank 1 for 2s\n");
  // Each node is a job of its own here, and node 0 ends at once.
  const auto chaos = folder.start({"--plan", folder / "plan", "--nnodes", "2", "--limit", "60s", "--launcher",
                                   program_path("elrun") + " --no_python", "--",
                                   folder.script("touch $2/lives$1; while [ ! -e $2/lives0 ] || [ ! -e $2/lives1 ]; do sleep 0.05; done\n"
                                                 "sleep 0.5; [ $1 = 0 ] || sleep 3; echo state=a\n"),
                                   "{node}", "{run}"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.says("stop rank 1 for 2s: over"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("kills that wait together hit a worker each, and not what one has left behind", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "100ms kill rank 0\n100ms kill rank 0\n100ms kill rank 0\n");
  const auto chaos = folder.start(
      {"--plan", folder / "plan", "--limit", "200s", "--max_restarts", "10", "--no_python",
       folder.script("while [ \"${1##*/}\" = disturbed ] && [ $TORCHELASTIC_RESTART_COUNT -lt 3 ]; do sleep 1000; done\necho state=a\n"),
       "{run}"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 0);
  std::set<std::string> killed;
  for (std::size_t at = 0; (at = ended.output.find(": process ", at)) != std::string::npos; ++at)
    killed.insert(ended.output.substr(at, ended.output.find(',', at) - at));
  CHECK(killed.size() == 3);
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a step that all ranks say counts once", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "1ms stop rank 1 for 100ms\n");
  const auto chaos =
      folder.start({"--plan", folder / "plan", "--nproc_per_node", "2", "--limit", "200s", "--json", "--no_python",
                    folder.script("i=0\nwhile [ $i -lt 20 ]; do i=$((i+1)); echo step=$i; sleep 0.2; done\necho state=a\n")});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  REQUIRE(ended.code == 0);
  const auto report = report_of(ended);
  for (const char* run : {"undisturbed", "disturbed"}) {
    CHECK(report[run]["step_lines"] == 20);
    CHECK(report[run]["steps_again"] == 0);
    CHECK(report[run]["step_gap_seconds"] >= 0.1);
  }
}

TEST_CASE("a job that does not survive, and one that nothing happened to, have exit codes of their own", "[chaos][process]") {
  const ChaosFolder folder;
  SECTION("it did not finish") {
    folder.write("plan", "500ms kill rank 0\n");
    const auto chaos = folder.start(
        {"--plan", folder / "plan", "--max_restarts", "0", "--limit", "200s", "--no_python", folder.script(forgetful), "{run}"});
    const Ended ended = finish(*chaos);
    INFO(ended.output);
    CHECK(ended.code == 2);
    CHECK(ended.says("did not finish: exit code 137"));
  }
  SECTION("it took too long") {
    folder.write("plan", "500ms stop rank 0 for 1h\n");
    const auto chaos = folder.start({"--plan", folder / "plan", "--limit", "4s", "--no_python", folder.script(forgetful), "{run}"});
    const Ended ended = finish(*chaos);
    INFO(ended.output);
    CHECK(ended.code == 2);
  }
  SECTION("it ended before the first failure") {
    folder.write("plan", "1h kill rank 0\n");
    CHECK(finish(*folder.start({"--plan", folder / "plan", "--no_python", folder.script(forgetful)})).code == 3);
  }
  SECTION("the undisturbed run failed") {
    folder.write("plan", "1s kill rank 0\n");
    const auto chaos =
        folder.start({"--plan", folder / "plan", "--max_restarts", "0", "--no_python", folder.script("echo about to fail; exit 7\n")});
    const Ended ended = finish(*chaos);
    INFO(ended.output);
    CHECK(ended.code == 3);
    CHECK(ended.says("about to fail"));
    CHECK(ended.says("the undisturbed run failed (exit code 7)"));
  }
  CHECK(folder.left_behind().empty());
}

TEST_CASE("output that is still in the pipe when the job ends is read to its end", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "1h kill rank 0\n");
  // Each node's launcher fills its pipe and ends at once.
  const auto chaos = folder.start(
      {"--plan", folder / "plan", "--nnodes", "8", "--json", "--launcher", folder.script("seq 1 11000\necho state=a\n"), "--", "nothing"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 3);
  const auto report = report_of(ended);
  REQUIRE(report.is_object());
  for (const char* run : {"undisturbed", "disturbed"}) {
    CHECK(report[run]["state"] == "a");
    REQUIRE(report[run]["states"].size() == 1);
    CHECK(report[run]["states"][0]["said_by"].size() == 8);
  }
  // It had no worker that chaos could know as one.
  CHECK(report["undisturbed"]["notes"].empty());
  REQUIRE(report["disturbed"]["notes"].size() == 1);
  CHECK(report["disturbed"]["notes"][0].get<std::string>().starts_with("disturbed run: never were all 8 workers seen to run at one time"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a rehearsal that is interrupted or killed leaves no process, and no file but in its work directory", "[chaos][process]") {
  const int number = GENERATE(SIGINT, SIGTERM, SIGKILL);
  const bool in_first_run = GENERATE(true, false);
  const ChaosFolder folder;
  folder.write("plan", "1ms stop rank 1 for 1h\n2ms slow rank 0 to 50% for 1h\n3ms kill-agent node 1 for 1h\n");  // the job stands still
  const auto chaos = folder.start(
      std::vector<std::string>{"--plan", folder / "plan", "--nnodes", "1:2", "--nproc_per_node", "2", "--rdzv_conf", "last_call_timeout=60",
                               "--no_python", "--",
                               folder.script(fmt::format("case ${{1##*/}} in disturbed) steps=100000;; *) steps={};; esac\nshift\n"
                                                         "exec \"$@\" --steps $steps\n",
                                                         in_first_run ? 100'000 : 50)),
                               "{run}", program_path("gpt")} +
      gpt_arguments(folder / "text", 1));
  const bool has_begun = chaos->line(in_first_run ? "4 workers run" : "node 1 is lost", Wait{120000}).has_value();
  INFO(chaos->output());
  REQUIRE(has_begun);
  chaos->signal(number);
  CHECK(chaos->wait(Wait{30000}) == 128 + number);
  const auto left = folder.left_behind();
  INFO(fmt::format("{}", left));
  CHECK(left.empty());
}

TEST_CASE("what cannot be rehearsed is refused before anything starts", "[chaos][process]") {
  const ChaosFolder folder;
  const auto refused = [&](std::vector<std::string> words, int code, const std::string& why) {
    const Ended ended = finish(*folder.start(std::move(words)));
    INFO(ended.output);
    CHECK(ended.code == code);
    CHECK(ended.says(why));
    CHECK_FALSE(fs::exists(folder.work()));
  };
  folder.write("plan", "1s kill rank 9\nsoon kill rank 0\n");
  refused({"--plan", folder / "plan", "a.py"}, 64, "line 1: `rank 9`: there are rank 0 to 0");
  refused({"--plan", folder / "plan", "a.py"}, 64, "line 2: `soon` is no time");
  refused({"--plan", folder / "no-plan", "a.py"}, 66, "no-plan");
  refused({"--mtbf", "10ms", "--for", "24h", "a.py"}, 78, "draw more than the 100000 failures that a plan may have");
  refused({"--mtbf", "24h", "--for", "1ms", "a.py"}, 78, "draw no failure");
  folder.write("plan", "# nothing\n");
  refused({"--plan", folder / "plan", "a.py"}, 64, "has no failure in it");
  refused({"--kinds", "cut", "a.py"}, 78, "cut cannot be rehearsed here: the job has one node only");
  refused({"--kinds", "fill", "a.py"}, 78, "fill cannot be rehearsed here: it needs {disk} in the command");
  fs::create_directory(folder.work());
  std::ofstream{folder.work() + "/mine"} << "x";
  const Ended ended = finish(*folder.start({"a.py"}));
  CHECK(ended.code == 78);
  CHECK(ended.says("has something in it already"));
  CHECK(fs::exists(folder.work() + "/mine"));
}

TEST_CASE("a plan is shown without starting anything, and can be replayed", "[chaos][process]") {
  const ChaosFolder folder;
  const std::vector<std::string> draw{"--mtbf",           "1s", "--for",    "20s", "--seed", "5", "--kinds", "kill,stop",
                                      "--nproc_per_node", "2",  "--dry-run"};
  const Ended drawn = finish(*folder.start(draw + std::vector<std::string>{"a.py"}));
  INFO(drawn.output);
  REQUIRE(drawn.code == 0);
  CHECK_FALSE(fs::exists(folder.work()));
  folder.write("plan", drawn.output);
  const Ended again = finish(*folder.start({"--plan", folder / "plan", "--nproc_per_node", "2", "--dry-run", "a.py"}));
  CHECK(again.code == 0);
  CHECK(again.output == drawn.output);
  const Ended for_programs = finish(*folder.start(draw + std::vector<std::string>{"--json", "a.py"}));
  const auto json = nlohmann::json::parse(for_programs.output, nullptr, false);
  INFO(for_programs.output);
  REQUIRE(json.is_object());
  std::string text;
  for (const auto& fault : json["faults"]) text += fault["fault"].get<std::string>() + "\n";
  CHECK(text == drawn.output);
}

TEST_CASE("the same plan runs under another launcher, whose workers are found by their environment", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "step 5 kill rank 1\nstep 10 stop rank 0 for 200ms\n");
  const auto chaos = folder.start({"--plan", folder / "plan", "--nproc_per_node", "2", "--launcher",
                                   program_path("elrun") + " --nproc_per_node {nproc} --max_restarts 9 --no_python", "--limit", "200s",
                                   "--", folder.script(forgetful), "{run}"});
  const Ended ended = finish(*chaos);
  INFO(ended.output);
  CHECK(ended.code == 1);  // it was restarted once
  CHECK(ended.says("worker 1 of node 0"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("a launcher that starts more workers than chaos was told of is found out", "[chaos][process]") {
  const ChaosFolder folder;
  folder.write("plan", "1ms stop rank 0 for 10ms\n");
  const Ended ended =
      finish(*folder.start({"--plan", folder / "plan", "--launcher", program_path("elrun") + " --nproc_per_node 2 --no_python", "--",
                            folder.script("sleep 3\n[ $RANK = 0 ] && sleep 1\necho state=$RANK\n")}));
  INFO(ended.output);
  CHECK(ended.code == 3);
  CHECK(ended.says("nothing can be said: node 0 has a worker with LOCAL_RANK 1, and --nproc-per-node says 1 worker for each node"));
  CHECK(folder.left_behind().empty());
}

TEST_CASE("as root, a node's network is cut and a small disk is filled", "[chaos][process]") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: needs root");
    return;
  }
  const bool fills = GENERATE(true, false);
  for (int tries = 1;; ++tries) {
    const ChaosFolder folder;
    folder.write("plan", fills ? "step 20 fill for 1500ms\n" : "step 20 cut node 1 for 1500ms\n");
    std::vector<std::string> words{"--plan", folder / "plan", "--disk", "16"};
    if (!fills)
      words.insert(words.end(), {"--nnodes", "1:2", "--rdzv_conf", "last_call_timeout=1,keep_alive_interval=0.1,keep_alive_max_attempt=5"});
    const auto chaos =
        folder.start(words + (fills ? gpt_words(folder, 1000, {"--checkpoint", "{disk}/ck", "--every", "5"}) : gpt_words(folder, 4000)));
    const Ended ended = finish(*chaos);
    INFO(ended.output);
    if (ended.code == 78 && ended.says("this machine gives no")) {
      WARN("SKIPPED: namespaces are not allowed here");
      return;
    }
    CHECK(ended.code == 0);
    CHECK(ended.says(fills ? "the disk is full" : "node 1 has no network"));
    CHECK(folder.left_behind().empty());
    std::ifstream file{folder.work() + "/disturbed/node0.log"};
    const std::string log{std::istreambuf_iterator<char>{file}, {}};
    const bool was_met = log.find(fills ? "no_space" : "generation 2: ") != std::string::npos;
    if (!was_met && tries < 4) continue;  // a job that the system did not run for these 1.5 s has not met it
    CHECK(was_met);
    if (fills) {
      CHECK(fs::is_empty(folder.work() + "/disturbed/disk"));    // nothing of it is left,
      CHECK(log.rfind(" committed: ") > log.rfind("no_space"));  // and there was room again
    }
    return;
  }
}
