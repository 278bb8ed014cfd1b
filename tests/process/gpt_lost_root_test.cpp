// Never from zero, never silently back, with real processes: what somebody who removes, unmounts or damages checkpoints finds.

#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/mounted.hpp"

using namespace elrun::test;
namespace fs = std::filesystem;

namespace {

constexpr unsigned steps = 400;

std::string tail(const std::string& text) { return text.substr(text.size() > 6000 ? text.size() - 6000 : 0); }

std::vector<std::string> training(const Folder& folder, const std::string& root) {
  return gpt_arguments(folder / "text", steps, {"--every", "20", "--checkpoint", root});
}

std::string undisturbed(const Folder& folder) {
  const Ended ended = run("gpt", gpt_arguments(folder / "text", steps));
  INFO(ended.output);
  REQUIRE(ended.code == 0);
  return ended.state;
}

std::unique_ptr<Job> two_workers(const Folder& folder, const std::string& root, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--nproc_per_node", "2"});
  return start_held_gpt(more, training(folder, root));
}

/// All workers at once, so that nobody has the state.
void kill_workers(const Job& job) {
  for (const pid_t pid : job.children_named("gpt")) (void)::kill(pid, SIGKILL);
}

/// Stops all workers, and returns when none of their threads runs any more: until they are killed nobody saves.
void stop_workers(const Job& job) {
  const auto runs = [](pid_t worker) {
    const std::string pid = std::to_string(worker);
    for (const auto& thread : fs::directory_iterator{"/proc/" + pid + "/task"}) {
      const std::string stat = text_of_process(pid, "task/" + thread.path().filename().string() + "/stat");
      if (!stat.empty() && stat.find(") T ") == std::string::npos) return true;
    }
    return false;
  };
  const auto workers = job.children_named("gpt");
  REQUIRE(workers.size() == 2);
  for (const pid_t pid : workers) REQUIRE(::kill(pid, SIGSTOP) == 0);
  for (const pid_t pid : workers) {
    for (int look = 0; look < 6000 && runs(pid); ++look) let_pass(Wait{10});
    REQUIRE_FALSE(runs(pid));
  }
}

/// Names under ckpt/ that have a COMMIT, oldest first.
std::vector<std::string> committed(const std::string& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator{root + "/ckpt"})
    if (fs::exists(entry.path() / "COMMIT")) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string step_of(const std::string& name) { return std::to_string(std::stoull(name.substr(1, 12))); }

/// Trains past some checkpoints, and is killed as a whole.
void leave_checkpoints(const Folder& folder, const std::string& root) {
  const auto job = two_workers(folder, root);
  REQUIRE(until(*job, "step=90 "));
  (void)kill_with_all(*job);
  REQUIRE(committed(root).size() >= 3);
}

void stopped_by(const Ended& ended, const std::string& who) {
  INFO(tail(ended.output));
  CHECK(ended.code == 78);
  CHECK(ended.says("was acknowledged and cannot be found"));
  CHECK(ended.says(who));
  CHECK(ended.says("--begin_anew "));
  CHECK(ended.state.empty());
}

}  // namespace

TEST_CASE("the checkpoint root goes away and all workers die: the job stops with 78, and goes on when it is back", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  const auto job = two_workers(folder, root);
  REQUIRE(until(*job, "step=90 "));
  stop_workers(*job);
  fs::rename(root, root + ".away");
  kill_workers(*job);
  const Ended ended = finish(*job);
  stopped_by(ended, "the agent of node ");
  CHECK_FALSE(fs::exists(root));  // nothing was written where it was
  fs::rename(root + ".away", root);
  const Ended again = finish(*two_workers(folder, root));
  INFO(tail(again.output));
  CHECK(again.code == 0);
  CHECK(again.says("going on from checkpoint"));
  CHECK(again.state == undisturbed(folder));
}

TEST_CASE("the root's mount disappears and all workers die: the job stops with 78", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  fs::create_directory(root);
  const auto mounted = Mounted::tmpfs(root, "size=64m");
  if (!mounted) return;
  const auto job = two_workers(folder, root);
  REQUIRE(until(*job, "step=90 "));
  stop_workers(*job);
  REQUIRE(::umount2(root.c_str(), MNT_DETACH) == 0);
  kill_workers(*job);
  stopped_by(finish(*job), "the agent of node ");
  CHECK(fs::is_empty(root));
}

TEST_CASE("the root, or its content, is removed under a job and all workers die: the job stops with 78", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  const bool content_alone = GENERATE(false, true);
  const auto job = two_workers(folder, root);
  REQUIRE(until(*job, "step=90 "));
  stop_workers(*job);
  if (!content_alone) fs::remove_all(root);
  else
    for (const auto& entry : fs::directory_iterator{root}) fs::remove_all(entry.path());
  kill_workers(*job);
  stopped_by(finish(*job), "the agent of node ");
}

TEST_CASE("the root is removed and every agent is new: the store of the job remembers", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck", port = std::to_string(free_port());
  const auto store = start("elrun", {"store", "--host", "127.0.0.1", "--port", port});
  const auto agent = [&](const std::vector<std::string>& more) {
    std::vector<std::string> options{"--nproc_per_node",  "2",           "--rdzv_backend", "c10d",      "--rdzv_endpoint",
                                     "127.0.0.1:" + port, "--rdzv_conf", "is_host=0",      "--rdzv_id", "lost"};
    options.insert(options.end(), more.begin(), more.end());
    return start_held_gpt(options, training(folder, root));
  };
  const auto job = agent({});
  REQUIRE(until(*job, "step=90 "));
  (void)kill_with_all(*job);
  fs::remove_all(root);
  const Ended ended = finish(*agent({}));
  stopped_by(ended, "the store of the job");
}

TEST_CASE("every COMMIT removed: a fresh job stops with 78, begins anew when told the step, and nothing is deleted", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  leave_checkpoints(folder, root);
  const auto names = committed(root);
  for (const std::string& name : names) fs::remove(root + "/ckpt/" + name + "/COMMIT");
  stopped_by(finish(*two_workers(folder, root)), ".acknowledged");
  const Ended wrong = finish(*two_workers(folder, root, {"--begin_anew", "7"}));
  INFO(tail(wrong.output));
  CHECK(wrong.code == 78);
  CHECK(wrong.says("names another step than the newest that is known"));
  const Ended anew = finish(*two_workers(folder, root, {"--begin_anew", step_of(names.back())}));
  INFO(tail(anew.output));
  CHECK(anew.code == 0);
  CHECK(anew.says("beginning at step 0"));
  CHECK(anew.state == undisturbed(folder));
  for (const std::string& name : names) CHECK(fs::exists(root + "/ckpt/" + name + "/MANIFEST.json"));
  const Ended after = run("gpt", training(folder, root));  // bare, and without the option
  INFO(tail(after.output));
  CHECK(after.code == 0);
  CHECK(after.state == anew.state);
}

TEST_CASE("with the newest COMMIT removed a job stops with 78; ELRUN_BEGIN_ANEW lets a bare program use the one before", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  leave_checkpoints(folder, root);
  const auto names = committed(root);
  fs::remove(root + "/ckpt/" + names.back() + "/COMMIT");
  stopped_by(finish(*two_workers(folder, root)), ".acknowledged");
  const Ended bare = run("gpt", training(folder, root));
  CHECK(bare.code == 78);
  const Ended anew = run("gpt", training(folder, root), {{"ELRUN_BEGIN_ANEW", step_of(names.back())}});
  INFO(tail(anew.output));
  CHECK(anew.code == 0);
  CHECK(anew.says("going on from checkpoint " + names[names.size() - 2]));
  CHECK(anew.state == undisturbed(folder));
  const Ended junk = run("gpt", training(folder, root), {{"ELRUN_BEGIN_ANEW", "4x"}});
  CHECK(junk.code == 78);
  CHECK(junk.says("ELRUN_BEGIN_ANEW=4x"));
}

TEST_CASE("a step that is lost twice has two loss names, and the option for the first loss does not cover the second", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck", result = undisturbed(folder);
  const auto lose_newest = [&] { fs::remove(root + "/ckpt/" + committed(root).back() + "/COMMIT"); };
  const auto told = [](const Ended& ended) {
    static constexpr std::string_view before = "with --begin_anew ";
    const auto at = ended.output.rfind(before);
    REQUIRE(at != std::string::npos);
    const auto begin = at + before.size();
    return ended.output.substr(begin, ended.output.find(' ', begin) - begin);
  };
  REQUIRE(run("gpt", training(folder, root)).code == 0);
  std::vector<std::string> names;
  for (int loss = 0; loss < 2; ++loss) {
    lose_newest();
    const Ended stopped = finish(
        *two_workers(folder, root, names.empty() ? std::vector<std::string>{} : std::vector<std::string>{"--begin_anew", names.back()}));
    stopped_by(stopped, ".acknowledged");
    const std::string name = told(stopped);
    CHECK(name.starts_with("400@"));
    CHECK(std::find(names.begin(), names.end(), name) == names.end());
    if (loss == 1) CHECK(stopped.says("was already used for an earlier loss of that step. It does not cover this one"));
    names.push_back(name);
    const Ended anew = finish(*two_workers(folder, root, {"--begin_anew", name}));
    INFO(tail(anew.output));
    CHECK(anew.code == 0);
    CHECK(anew.says("going on from checkpoint s000000000380"));
    CHECK(anew.state == result);
  }
}

TEST_CASE("fences removed from the root: a fresh job stops with 78, and goes on from the newest checkpoint when told so", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  leave_checkpoints(folder, root);
  const auto names = committed(root);
  fs::remove_all(root + "/gens");
  const Ended stopped = finish(*two_workers(folder, root));
  INFO(tail(stopped.output));
  CHECK(stopped.code == 78);
  CHECK(stopped.says("holds " + names.back() + ", but gens/"));
  const std::string name = "0@" + std::to_string(std::stoull(names.back().substr(15, 8)));
  CHECK(stopped.says("--begin_anew " + name + " "));
  CHECK_FALSE(fs::exists(root + "/gens"));
  const Ended anew = finish(*two_workers(folder, root, {"--begin_anew", name}));
  INFO(tail(anew.output));
  CHECK(anew.code == 0);
  CHECK(anew.says("going on from checkpoint " + names.back()));
  CHECK(anew.state == undisturbed(folder));
}

TEST_CASE("with a full root the final save waits for free space and then succeeds; a signal ends the wait at once", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  fs::create_directory(root);
  const auto mounted = Mounted::tmpfs(root, "size=32m");
  if (!mounted) return;
  {  // room for a start, and for no checkpoint
    std::ofstream fill{root + "/ballast", std::ios::binary};
    const std::string chunk(1 << 20, 'x');
    for (int i = 0; i < 30; ++i) fill.write(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    REQUIRE(fill.flush().good());
  }
  const auto job = start(
      "elrun", under_elrun({"--nproc_per_node", "2"}, gpt_arguments(folder / "text", 100, {"--every", "1000", "--checkpoint", root})));
  REQUIRE(until(*job, "try 2 of the final checkpoint failed"));
  const bool is_freed = GENERATE(true, false);
  if (is_freed) {
    fs::remove(root + "/ballast");
    const Ended ended = finish(*job);
    INFO(tail(ended.output));
    CHECK(ended.code == 0);
    CHECK(ended.says("all 100 steps are done, but try 1 of the final checkpoint failed"));
    CHECK(ended.says("free some space"));
    CHECK(ended.says("the final checkpoint is saved, at try "));
    CHECK(committed(root).size() == 1);
    CHECK(ended.state.size() == 16);
  } else {
    const auto begun = std::chrono::steady_clock::now();
    job->signal(SIGTERM);
    const Ended ended = finish(*job);
    INFO(tail(ended.output));
    CHECK(ended.code != 0);
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds{8});  // no drain, no grace: nothing more can be saved
    CHECK(committed(root).empty());
  }
}

TEST_CASE("one flipped bit in RUN.json ends no job", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  leave_checkpoints(folder, root);
  {
    std::fstream file{root + "/RUN.json", std::ios::in | std::ios::out | std::ios::binary};
    file.seekg(40);
    const char c = static_cast<char>(file.get());
    file.seekp(40);
    file.put(static_cast<char>(c ^ 4));
  }
  const Ended ended = finish(*two_workers(folder, root));
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.says("it is written again from the newest checkpoint"));
  CHECK(ended.says("going on from checkpoint"));
  CHECK(ended.state == undisturbed(folder));
}

TEST_CASE("steps that no checkpoint holds are done again, with one line", "[golden]") {
  const Folder folder;
  const auto job = two_workers(folder, folder / "ck");
  REQUIRE(until(*job, "step=90 "));
  kill_workers(*job);
  const Ended ended = finish(*job);
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.says("steps between, and they are done again"));
  CHECK(ended.says("the job was at step "));
  CHECK(ended.state == undisturbed(folder));
}
