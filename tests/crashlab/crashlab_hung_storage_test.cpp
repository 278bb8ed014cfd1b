// The sample gpt on a storage that hangs: a system call on it never returns. Training goes on, SIGTERM ends the job in time, and a start waits.

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"

using namespace elrun;
using namespace elrun::test;

namespace {

/// Operation `at` below the root never returns; each may take 2 s.
std::map<std::string, std::string> hanging(const std::string& root, long at) {
  return {{"LD_PRELOAD", test_program_path("libelrun_failing_storage.so")},
          {"ELRUN_FAIL_BELOW", root},
          {"ELRUN_FAIL", std::to_string(at) + " -1 once"},
          {"ELRUN_STORAGE_LIMIT", "2"}};
}

}  // namespace

TEST_CASE("the doctor gives up a program whose file system hangs, and looks at the rest", "[crashlab]") {
  const Folder folder;
  const std::string program = folder / "bin/program", doctor_says = "FAIL  program    what starts ";
  std::filesystem::create_directories(folder / "bin");
  std::ofstream{program} << "#!/bin/sh\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const auto job = start("elrun", {"doctor", "--log_dir", folder / "logs", "--no_python", program}, hanging(folder / "bin", 1));
  CHECK(job->wait() == 78);
  INFO(job->output());
  CHECK(job->says(doctor_says + program + " cannot be looked up: a file system has not answered within 5.0 s"));
  CHECK(job->says("ok    logs"));
}

TEST_CASE("the doctor gives up the place of the agent's socket and /dev/shm where their file system hangs, and looks at the rest",
          "[crashlab]") {
  const Folder folder;
  const bool is_shm = GENERATE(false, true);
  const std::string place = folder / "away";
  std::filesystem::create_directory(place);
  auto environment = hanging(is_shm ? "/dev/shm" : place, 1);
  environment["XDG_RUNTIME_DIR"] = place;
  const auto job = start("elrun", {"doctor", "--log_dir", folder / "logs"}, environment);
  CHECK(job->wait(Wait{30000}) == 78);
  INFO(job->output());
  CHECK(job->says(std::string{is_shm ? "FAIL  shm        /dev/shm" : "FAIL  directory  the agent's directory"} +
                  " cannot be written: its file system has not answered within 5.0 s"));
  CHECK(job->says("ok    logs"));
}

TEST_CASE("training goes on while the storage hangs, and SIGTERM ends the job", "[crashlab]") {
  const Folder folder;
  const std::string root = folder / "ck", count_file = folder / "count";
  const auto arguments = gpt_arguments(folder / "text", 1'000'000, {"--every", "50", "--checkpoint", root});
  long operations = 0;  // of a start and the first save
  {
    auto counted = hanging(root, 0);
    counted["ELRUN_FAIL_COUNT"] = count_file;
    REQUIRE(run("gpt", gpt_arguments(folder / "text", 50, {"--every", "50", "--checkpoint", root}), counted).code == 0);
    std::ifstream{count_file} >> operations;
    REQUIRE(operations > 20);
    std::filesystem::remove_all(root);
  }
  const auto job = start("elrun", under_elrun({"--nproc_per_node", "1"}, arguments), hanging(root, operations + 12));
  const auto said = job->line("could not be saved, training goes on");
  REQUIRE(said);
  CHECK_THAT(*said, Catch::Contains(root) && Catch::Contains("has not returned for 2.") && Catch::Contains("the storage hangs"));
  CHECK_THAT(*said, Catch::Contains("the newest that was saved is of step 50"));
  REQUIRE(job->line("step="));                                 // decided after that
  REQUIRE(job->line("could not be saved, training goes on"));  // and the next save fails, too, at once
  job->signal(SIGTERM);
  const int code = job->wait(Wait{30000});
  INFO(job->output());
  CHECK(code != -1);
}

TEST_CASE("a start waits for a storage that hangs or cannot be read, goes on when it answers, and uses up no restart", "[crashlab]") {
  const Folder folder;
  const std::string root = folder / "ck", healed = folder / "healed";
  const auto begin = gpt_arguments(folder / "text", 4, {"--every", "2", "--checkpoint", root});
  const auto arguments = gpt_arguments(folder / "text", 8, {"--every", "2", "--checkpoint", root});
  REQUIRE(run("gpt", begin).code == 0);
  const std::string undisturbed = run("gpt", arguments).state;
  for (const char* how : {"1 -1 once", "1 5 always"}) {  // 5: EIO
    std::filesystem::remove_all(root);
    std::filesystem::remove(healed);
    REQUIRE(run("gpt", begin).code == 0);
    auto environment = hanging(root, 1);
    environment["ELRUN_FAIL"] = how, environment["ELRUN_FAIL_UNTIL"] = healed;
    const auto job = start("elrun", under_elrun({"--nproc_per_node", "2", "--max_restarts", "0"}, arguments), environment);
    const auto said = job->line("the job waits for the storage of its checkpoints, try ");
    REQUIRE(said);
    INFO(*said);
    CHECK_THAT(*said, Catch::Contains("rank ") && Catch::Contains(root) && Catch::Contains("It is tried again in"));
    CHECK_THAT(*said, Catch::Contains(how[2] == '-' ? "the storage hangs. Is its server there" : "Input/output error"));
    REQUIRE(job->line("the job waits for the storage of its checkpoints, try 2 "));
    std::ofstream{healed}.put('\n');
    const Ended ended = finish(*job);
    INFO(ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.says("the storage answers, at try "));
    CHECK(ended.state == undisturbed);
  }
}

TEST_CASE("a start that waits for its storage does not count as hung, however short --hang_timeout is", "[crashlab]") {
  const Folder folder;
  const std::string root = folder / "ck", healed = folder / "healed";
  const auto begin = gpt_arguments(folder / "text", 4, {"--every", "2", "--checkpoint", root});
  const auto arguments = gpt_arguments(folder / "text", 8, {"--every", "2", "--checkpoint", root});
  REQUIRE(run("gpt", begin).code == 0);
  const std::string undisturbed = run("gpt", arguments).state;
  struct Trouble {
    const char *how, *shown;
    std::vector<std::string> lines;  // the last one comes when the wait has been longer than a hang may be
  };
  // One operation that does not return has been told of after 5 s; the fourth try of one that fails comes after 7 s.
  for (const Trouble& trouble :
       {Trouble{"1 -1 once", "has not returned for", {"This is no hang, and uses up no restart"}},
        Trouble{"1 5 always",
                "Input/output error",
                {"This is no hang, and uses up no restart", "the job waits for the storage of its checkpoints, try 4 "}}}) {
    std::filesystem::remove_all(root);
    std::filesystem::remove(healed);
    REQUIRE(run("gpt", begin).code == 0);
    auto environment = hanging(root, 1);
    environment["ELRUN_FAIL"] = trouble.how, environment["ELRUN_STORAGE_LIMIT"] = "300", environment["ELRUN_FAIL_UNTIL"] = healed;
    environment["XDG_RUNTIME_DIR"] = folder / ".";
    const auto job =
        start("elrun", under_elrun({"--nproc_per_node", "2", "--max_restarts", "0", "--hang_timeout", "3"}, arguments), environment);
    std::string said;
    for (const std::string& line : trouble.lines) {
      const auto came = job->line(line, Wait{60000});
      INFO(trouble.how << ": " << job->output());
      REQUIRE(came);
      if (said.empty()) said = *came;
    }
    CHECK_THAT(said, Catch::Contains("waits for the storage of its checkpoints, " + root) && Catch::Contains(trouble.shown));
    const Ended status = run("elrun", {"status"}, {{"XDG_RUNTIME_DIR", folder / "."}});
    INFO(status.output);
    CHECK(status.code == 0);
    CHECK(status.says("waits for the storage of checkpoints, " + root));
    CHECK(status.says(trouble.shown));
    std::ofstream{healed}.put('\n');
    const Ended ended = finish(*job);
    INFO(ended.output);
    CHECK(ended.code == 0);
    CHECK(ended.says("going on from checkpoint s000000000004.g00000001.a01"));
    CHECK_FALSE(ended.says("this is a hang"));
    CHECK_FALSE(ended.says("generation 2"));
    CHECK(ended.state == undisturbed);
  }
}

TEST_CASE("a newest checkpoint that stays unreadable ends the job with 78; when a person passes it over, the one before is used",
          "[crashlab]") {
  const Folder folder;
  const std::string root = folder / "ck";
  REQUIRE(run("gpt", gpt_arguments(folder / "text", 4, {"--every", "2", "--checkpoint", root})).code == 0);
  const std::string newest = root + "/ckpt/s000000000004.g00000001.a01";
  REQUIRE(std::filesystem::exists(newest + "/COMMIT"));
  const auto arguments = gpt_arguments(folder / "text", 8, {"--every", "2", "--final-wait", "2", "--checkpoint", root});
  const auto elrun_options = std::vector<std::string>{"--nproc_per_node", "2", "--max_restarts", "3"};
  auto environment = hanging(newest + "/MANIFEST.json", 1);
  environment["ELRUN_FAIL"] = "1 5 always";
  const Ended stopped = run("elrun", under_elrun(elrun_options, arguments), environment);
  INFO(stopped.output);
  CHECK(stopped.code == 78);
  CHECK(stopped.says("for their storage does not answer"));
  CHECK(stopped.says("goes back to no older one"));
  CHECK(stopped.says("touch " + newest + "/QUARANTINE"));
  CHECK_FALSE(stopped.says("begin_anew"));
  CHECK_FALSE(stopped.says("generation 2"));
  CHECK_FALSE(std::filesystem::exists(newest + "/QUARANTINE"));
  std::ofstream{newest + "/QUARANTINE"};
  const Ended ended = run("elrun", under_elrun(elrun_options, arguments), environment);
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.says("going on from checkpoint s000000000002.g00000001.a01"));
  CHECK(ended.says("checkpoint s000000000004.g00000001.a01 is passed over"));
  CHECK(std::filesystem::exists(newest + "/MANIFEST.json"));
}

TEST_CASE("a start on a storage that never answers ends with operation, file and advice, and is not restarted", "[crashlab]") {
  const Folder folder;
  const std::string root = folder / "ck";
  REQUIRE(run("gpt", gpt_arguments(folder / "text", 4, {"--every", "2", "--checkpoint", root})).code == 0);
  const auto arguments = gpt_arguments(folder / "text", 8, {"--every", "2", "--final-wait", "2", "--checkpoint", root});
  unsigned stopped = 0;
  for (const long at : {1, 7, 20}) {
    const Ended ended = at == 1 ? run("elrun", under_elrun({"--nproc_per_node", "1", "--max_restarts", "3"}, arguments), hanging(root, at))
                                : run("gpt", arguments, hanging(root, at));
    INFO(ended.output);
    if (ended.code == 0) continue;  // it was the close of a file that was read: nobody waits for that
    ++stopped;
    CHECK(ended.code == 78);  // a person has to look after the storage
    CHECK(ended.says("for their storage does not answer"));
    CHECK_FALSE(ended.says("generation 2"));
    CHECK(ended.says("has not returned for 2."));
    CHECK(ended.says("Is its server there, and the network to it?"));
    CHECK(ended.says(root));
  }
  CHECK(stopped >= 2);
}

TEST_CASE("elrun ckpt on a storage that hangs ends with the operation, the file and what to look at; Ctrl-C ends it at once",
          "[crashlab]") {
  const Folder folder;
  const std::string root = folder / "ck";
  REQUIRE(run("gpt", gpt_arguments(folder / "text", 4, {"--every", "2", "--checkpoint", root})).code == 0);
  const std::vector<std::vector<std::string>> commands{
      {"ckpt", "ls", root}, {"ckpt", "inspect", root}, {"ckpt", "verify", root}, {"ckpt", "diff", root + ":2", root + ":4"}};
  for (const auto& words : commands) {
    const Ended ended = run("elrun", words, hanging(root, 1));
    INFO(words[1] << ": " << ended.output);
    CHECK(ended.code == 70);
    CHECK(ended.says(root));
    CHECK(ended.says("has not returned for 2."));
    CHECK(ended.says("Is its server there, and the network to it?"));
  }
  auto for_long = hanging(root, 1);
  for_long["ELRUN_STORAGE_LIMIT"] = "300";
  for (const auto& words : commands) {
    const auto command = start("elrun", words, for_long);
    REQUIRE(command->line("an operation hangs"));
    command->signal(SIGINT);
    CHECK(command->wait(Wait{30000}) == 128 + SIGINT);
  }
}

TEST_CASE("an agent whose look at --checkpoint_root hangs starts its workers all the same, and says so", "[crashlab]") {
  const Folder folder;
  const std::string root = folder / "ck";
  REQUIRE(run("gpt", gpt_arguments(folder / "text", 4, {"--every", "2", "--checkpoint", root})).code == 0);
  const Ended ended = run("elrun", {"--nproc_per_node", "1", "--checkpoint_root", root, "--no_python", "/bin/true"}, hanging(root, 1));
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.says("--checkpoint_root: "));
  CHECK(ended.says("has not returned for 2."));
  CHECK(ended.says("generations are counted from 1"));
}

TEST_CASE("a worker dies while the leader is stuck in the removal of old checkpoints, and the save before that counts", "[crashlab]") {
  const Folder folder;
  const std::string root = folder / "ck", healed = folder / "healed";
  const std::string undisturbed = run("gpt", gpt_arguments(folder / "text", 100)).state;
  auto environment = hanging(root + "/trash", 1);  // a retention touches it, and nothing else does
  environment["ELRUN_STORAGE_LIMIT"] = "300", environment["ELRUN_FAIL_UNTIL"] = healed;
  const auto job = start("elrun",
                         under_elrun({"--nproc_per_node", "2", "--max_restarts", "3"},
                                     gpt_arguments(folder / "text", 100, {"--every", "20", "--zero", "1", "--checkpoint", root})),
                         environment);
  REQUIRE(job->line("s000000000020.g00000001.a01 committed"));
  REQUIRE(job->line("an operation hangs"));
  const auto workers = job->children_named("gpt");
  REQUIRE(workers.size() == 2);
  ::kill(workers.back(), SIGKILL);  // the leader was started first
  REQUIRE(job->line("going on from checkpoint s000000000020.g00000001.a01", Wait{60000}));
  std::ofstream{healed}.put('\n');
  const Ended ended = finish(*job);
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(ended.state == undisturbed);
}

TEST_CASE("an agent whose termination log hangs ends, and says that the root cause is missing there", "[crashlab]") {
  const Folder folder;
  auto environment = hanging(folder / "away", 1);
  environment["ELRUN_TERMINATION_LOG"] = folder / "away/termination-log";
  const Ended ended = finish(*start("elrun", {"--no_python", "/bin/sh", "-c", "exit 3"}, environment));
  INFO(ended.output);
  CHECK(ended.code == 3);
  CHECK(ended.says("ELRUN_TERMINATION_LOG (" +
                   folder / "away/termination-log) has not answered within 1.0 s: the root cause is missing there"));
  const Ended refused = finish(*start("elrun", {"--no_python", "no-such-program"}, environment));
  INFO(refused.output);
  CHECK(refused.code == 127);
}

TEST_CASE("an agent whose own error file hangs ends, and says that the root cause is missing there", "[crashlab]") {
  const Folder folder;
  auto environment = hanging(folder / "away", 1);
  environment["TORCHELASTIC_ERROR_FILE"] = folder / "away/error.json";
  const auto job = start("elrun", {"--no_python", "/bin/sh", "-c", "exit 3"}, environment);
  const Ended ended = finish(*job);
  INFO(ended.output);
  CHECK(ended.code == 3);
  CHECK(ended.says("error.json) has not answered within 1.0 s: the root cause is missing there"));
}
