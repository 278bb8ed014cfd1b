// One bad file stops nobody, and what a person must change ends a job with 78 and no restarts: real processes on a real file system.

#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/mounted.hpp"

using namespace elrun::test;
namespace fs = std::filesystem;

namespace {

constexpr unsigned steps = 400;  // the learning rate follows from it

std::vector<std::string> training(const Folder& folder, const std::string& root) {
  return gpt_arguments(folder / "text", steps, {"--every", "20", "--checkpoint", root});
}

/// Trains past some checkpoints, and is killed as a whole.
void leave_checkpoints(const Folder& folder, const std::string& root) {
  const auto job = start_held_gpt({"--nproc_per_node", "2"}, training(folder, root));
  REQUIRE(until(*job, "step=90 "));
  (void)kill_with_all(*job);
}

std::string undisturbed(const Folder& folder) { return run("gpt", gpt_arguments(folder / "text", steps)).state; }

Ended two_workers(const std::vector<std::string>& gpt) {
  return run("elrun", under_elrun({"--nproc_per_node", "2", "--max_restarts", "3"}, gpt));
}

std::string tail(const std::string& text) { return text.substr(text.size() > 6000 ? text.size() - 6000 : 0); }

std::string newest(const std::string& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator{root + "/ckpt"}) names.push_back(entry.path().filename());
  REQUIRE_FALSE(names.empty());
  return *std::max_element(names.begin(), names.end());
}

void ends_at_once_with_78(const Ended& ended) {
  INFO(tail(ended.output));
  CHECK(ended.code == 78);
  CHECK_FALSE(ended.says("generation 2"));
  CHECK(ended.state.empty());
}

}  // namespace

TEST_CASE("a job goes on from the checkpoint before when FIFOs replace RUN.json, gens/* and the newest COMMIT", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  leave_checkpoints(folder, root);
  const std::string last = newest(root);
  std::vector<std::string> names{root + "/RUN.json", root + "/ckpt/" + last + "/COMMIT"};
  for (const auto& entry : fs::directory_iterator{root + "/gens"}) names.push_back(entry.path());
  for (const std::string& name : names) {
    fs::remove(name);
    REQUIRE(::mkfifo(name.c_str(), 0666) == 0);
  }
  const Ended ended = two_workers(training(folder, root));
  INFO(tail(ended.output));
  CHECK(ended.code == 0);
  CHECK(ended.says("is a FIFO, and should be a file"));
  CHECK(ended.says("going on from checkpoint s"));
  CHECK(ended.state == undisturbed(folder));
  CHECK(fs::exists(root + "/ckpt/" + last + "/QUARANTINE"));
}

TEST_CASE("what is no directory in the place of the root, or within it, ends the job with 78 and no restarts", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  const std::string name = GENERATE("", "/gens", "/ckpt");
  leave_checkpoints(folder, root);
  fs::remove_all(root + name);
  const bool loop = GENERATE(false, true);
  if (loop) fs::create_symlink(fs::path{root + name}.filename(), root + name);
  else REQUIRE(::mkfifo((root + name).c_str(), 0666) == 0);
  const Ended ended = two_workers(training(folder, root));
  ends_at_once_with_78(ended);
  CHECK(ended.says(root));
}

TEST_CASE("a job goes on from the checkpoint of a root that is read-only", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  const bool is_through = GENERATE(false, true);
  if (is_through) REQUIRE(two_workers(training(folder, root)).code == 0);
  else leave_checkpoints(folder, root);
  const auto mounted = Mounted::read_only(root);
  if (!mounted) return;
  if (is_through) {
    const Ended ended = two_workers(training(folder, root));
    INFO(tail(ended.output));
    CHECK(ended.code == 0);
    CHECK(ended.says("cannot be written"));
    CHECK(ended.state == undisturbed(folder));
  } else {  // the final save waits for a person
    const auto job = start("elrun", under_elrun({"--nproc_per_node", "2"}, training(folder, root)));
    REQUIRE(until(*job, "of the final checkpoint failed"));
    REQUIRE(::mount(nullptr, root.c_str(), nullptr, MS_REMOUNT | MS_BIND, nullptr) == 0);
    const Ended ended = finish(*job);
    INFO(tail(ended.output));
    CHECK(ended.code == 0);
    CHECK(ended.says("the final checkpoint is saved"));
    CHECK(ended.state == undisturbed(folder));
  }
}

TEST_CASE("an empty root that cannot be written ends the job with 78 and no restarts", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  fs::create_directory(root);
  const auto mounted = Mounted::tmpfs(root, "size=1m", MS_RDONLY);
  if (!mounted) return;
  const Ended ended = two_workers(training(folder, root));
  ends_at_once_with_78(ended);
  CHECK(ended.says("let this user write there"));
}
