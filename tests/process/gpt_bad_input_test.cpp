// Bad input: a clear error that names the thing and the remedy, and nothing is lost.

#include <sys/mount.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <set>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/mounted.hpp"

using namespace elrun::test;
namespace fs = std::filesystem;

namespace {

Ended gpt(const std::vector<std::string>& arguments) { return run("gpt", arguments); }

std::vector<std::string> with_checkpoints(const Folder& folder, unsigned steps, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"--every", "4", "--checkpoint", folder / "ck"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return gpt_arguments(folder / "text", steps, arguments);
}

/// The shard files of the newest checkpoint. A save that was cut off has no COMMIT, and nobody would speak of it.
std::vector<fs::path> newest_shards(const std::string& root) {
  std::set<fs::path> checkpoints;
  for (const auto& entry : fs::directory_iterator{fs::path{root} / "ckpt"})
    if (fs::exists(entry.path() / "COMMIT")) checkpoints.insert(entry.path());
  REQUIRE_FALSE(checkpoints.empty());
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator{*checkpoints.rbegin()})
    if (entry.path().extension() == ".safetensors") shards.push_back(entry.path());
  REQUIRE_FALSE(shards.empty());
  return shards;
}

}  // namespace

TEST_CASE("a missing or empty text is named, with what it must be", "[bad-input]") {
  const Folder folder;
  const Ended missing = gpt(gpt_arguments(folder / "nothing", 3));
  INFO(missing.output);
  CHECK(missing.code == 66);
  CHECK(missing.says(folder / "nothing"));
  std::ofstream{folder / "empty"};
  const Ended empty = gpt(gpt_arguments(folder / "empty", 3));
  INFO(empty.output);
  CHECK(empty.code == 66);
  CHECK(empty.says(folder / "empty"));
  CHECK(empty.says("33"));  // context + 1 bytes
}

TEST_CASE("all contradictions of the sample's options are named at once", "[bad-input]") {
  const Folder folder;
  const Ended ended = gpt({"--data", folder / "text", "--channels", "30", "--heads", "4", "--global-batch", "8", "--micro-batch", "3"});
  INFO(ended.output);
  CHECK(ended.code == 78);
  CHECK(ended.says("--channels"));
  CHECK(ended.says("--micro-batch"));
}

TEST_CASE("a checkpoint directory that cannot be made is named before the first step", "[bad-input]") {
  const Folder folder;
  const Ended ended = gpt(gpt_arguments(folder / "text", 3, {"--checkpoint", folder / "text/below-a-file"}));
  INFO(ended.output);
  CHECK(ended.code != 0);
  CHECK(ended.says("below-a-file"));
  CHECK_FALSE(ended.says("step=1 "));
}

TEST_CASE("a full disk costs the save, not the job and not the checkpoint before", "[bad-input]") {
  const Folder folder;
  const std::string disk = folder / "disk";
  fs::create_directory(disk);
  // Room for two checkpoints of 270 kB beside the reserve that a save leaves free, not for three.
  const auto mounted = Mounted::tmpfs(disk, "size=4800k");
  if (!mounted) return;
  const auto arguments = gpt_arguments(folder / "text", 12, {"--every", "2", "--checkpoint", disk + "/ck", "--final-wait", "1"});
  const Ended full = gpt(arguments);
  std::ofstream{disk + "/filler"} << std::string(8 << 20, 'x');
  const Ended fuller = gpt(arguments);
  fs::remove(disk + "/filler");
  const bool grown = ::mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=32m") == 0;
  const Ended again = gpt(arguments);
  INFO(full.output << "\n-- full:\n" << fuller.output << "\n-- with room:\n" << again.output);
  CHECK(grown);
  CHECK(full.says("step=12 "));  // training went on
  CHECK(full.says("no_space"));
  CHECK(full.code != 0);  // but its end is not on the disk
  CHECK(fuller.code != 0);
  CHECK(fuller.says("no_space"));
  CHECK(again.code == 0);
  CHECK_FALSE(again.says("step=1 "));
  CHECK(again.state == gpt(gpt_arguments(folder / "text", 12)).state);
}

#ifdef ELRUN_TEST_LAUNCHER
TEST_CASE("a job that can save no checkpoint for max_age ends with 173, and is not restarted", "[bad-input]") {
  const Folder folder;
  const std::string disk = folder / "disk";
  fs::create_directory(disk);
  const auto mounted = Mounted::tmpfs(disk, "size=4800k");
  if (!mounted) return;
  const Ended ended = finish(*start(
      "elrun", under_elrun({"--nproc_per_node", "2"},
                           gpt_arguments(folder / "text", 100'000, {"--every", "2", "--checkpoint", disk + "/ck", "--max-age", "1"}))));
  INFO(ended.output.substr(ended.output.size() - std::min<std::size_t>(ended.output.size(), 6000)));
  CHECK(ended.code == 173);
  CHECK(ended.says("training goes on; the newest that was saved is of step"));
  CHECK(ended.says("and checkpoint.max_age is 1.0 s: the job ends here; the save of step"));
  CHECK(ended.says("could save no checkpoint for too long (CheckpointOptions::max_age) is not restarted"));
  CHECK_FALSE(ended.says("generation 2"));
}
#endif

TEST_CASE("a checkpoint of another model or another plan is refused with both sides", "[bad-input]") {
  const Folder folder;
  REQUIRE(gpt(with_checkpoints(folder, 8)).code == 0);
  for (const auto& [option, was, is] : std::vector<std::array<std::string, 3>>{
           {"--seed", "7", "8"}, {"--micro-batch", "1", "2"}, {"--channels", "32", "64"}, {"--data", "", folder / "other"}}) {
    const Ended ended = gpt(with_checkpoints(folder, 16, {option, is}));
    INFO(option << "\n" << ended.output);
    CHECK(ended.code == 78);
    if (option != "--data") {
      CHECK(ended.says(was));
      CHECK(ended.says(is));
    }
    CHECK(ended.says(folder / "ck"));
  }
#ifdef ELRUN_TEST_LAUNCHER
  const Ended launched = run("elrun", under_elrun({"--nproc_per_node", "2"}, with_checkpoints(folder, 16, {"--seed", "8"})));
  INFO(launched.output);
  CHECK(launched.code == 78);
  CHECK_FALSE(launched.says("generation 2"));  // no restart would change it
#endif
  const Ended right = gpt(with_checkpoints(folder, 8));
  CHECK(right.code == 0);  // nothing was lost
}

TEST_CASE("a truncated or flipped shard is passed over for the checkpoint before, aloud, with the same state", "[bad-input]") {
  const Folder folder;
  const auto job = start_held_gpt({}, with_checkpoints(folder, 500));
  REQUIRE(until(*job, "step=14 "));
  job->signal(SIGKILL);
  CHECK(finish(*job).code == 137);
  const std::string damage = GENERATE("truncated", "flipped", "gone");
  INFO(damage);
  const fs::path shard = newest_shards(folder / "ck").front();
  if (damage == "truncated") fs::resize_file(shard, fs::file_size(shard) / 2);
  if (damage == "gone") fs::remove(shard);
  if (damage == "flipped") {
    std::fstream file{shard, std::ios::in | std::ios::out | std::ios::binary};
    file.seekg(static_cast<std::streamoff>(fs::file_size(shard) / 2));
    const char byte = static_cast<char>(file.get() ^ 16);
    file.seekp(static_cast<std::streamoff>(fs::file_size(shard) / 2));
    file.put(byte);
  }
  const Ended ended = gpt(with_checkpoints(folder, 500));
  INFO(ended.output.substr(0, 4000));
  CHECK(ended.code == 0);
  CHECK(ended.says(shard.parent_path().filename().string()));
  CHECK_FALSE(ended.says("step=1 "));
  CHECK(ended.state == gpt(gpt_arguments(folder / "text", 500)).state);
}

TEST_CASE("of two jobs on one checkpoint root the older stops and names both", "[bad-input]") {
  const Folder folder;
  const auto arguments = with_checkpoints(folder, 1000000);
  const auto older = start("gpt", arguments);
  REQUIRE(until(*older, "step=6 "));
  const auto newer = start("gpt", arguments);
  REQUIRE(until(*newer, "step="));
  const Ended ended = finish(*older);
  INFO(ended.output.substr(ended.output.size() > 3000 ? ended.output.size() - 3000 : 0));
  CHECK(ended.code != 0);
  CHECK(ended.says("fence"));
  CHECK(until(*newer, "step="));  // the newer one goes on
}

#ifdef ELRUN_TEST_LAUNCHER
TEST_CASE("under elrun, too, the older of two jobs on one root stops, and does not take it back", "[bad-input]") {
  const Folder folder;
  const auto arguments = under_elrun({"--nproc_per_node", "2"}, with_checkpoints(folder, 1000000));
  const auto older = start("elrun", arguments);
  REQUIRE(until(*older, "step=6 "));
  const auto newer = start("elrun", arguments);
  const Ended ended = finish(*older);
  INFO(ended.output.substr(ended.output.size() > 3000 ? ended.output.size() - 3000 : 0));
  CHECK(ended.code == 78);
  CHECK(ended.says("was taken over"));
  CHECK_FALSE(ended.says("generation 2"));
  CHECK(until(*newer, "step="));
}

TEST_CASE("under elrun, too, a disk that is full at the end is told once", "[bad-input]") {
  const Folder folder;
  const std::string disk = folder / "disk";
  fs::create_directory(disk);
  const auto mounted = Mounted::tmpfs(disk, "size=1m");
  if (!mounted) return;
  const Ended ended = run("elrun", under_elrun({"--nproc_per_node", "2"},
                                               gpt_arguments(folder / "text", 4, {"--checkpoint", disk + "/ck", "--final-wait", "1"})));
  INFO(ended.output);
  CHECK(ended.code == 78);
  CHECK(ended.says("no_space"));
  CHECK_FALSE(ended.says("generation 2"));
}

TEST_CASE("under elrun a wrong option is one sentence, however many workers have it", "[bad-input]") {
  Job job{{.arguments = {"--nproc_per_node", "4", "--no_python", program_path("gpt"), "--bogus", "--data", "/dev/null"}}};
  CHECK(job.wait() == 64);
  INFO(job.output());
  const auto at = job.output().find("'--bogus' is no option of gpt");
  REQUIRE(at != std::string::npos);
  CHECK(job.output().find("'--bogus' is no option of gpt", at + 1) == std::string::npos);
  CHECK(job.says("rank      : 0 (local_rank: 0)"));
}

TEST_CASE("the launcher's contradictions are named, with the remedy", "[bad-input]") {
  const Ended none = run("elrun", {"--nproc_per_node", "0", "--no_python", "/bin/true"});
  INFO(none.output);
  CHECK((none.code == 64 || none.code == 78));
  CHECK(none.says("nproc_per_node"));
  const Ended range = run("elrun", {"--nnodes", "3:2", "--no_python", "/bin/true"});
  INFO(range.output);
  CHECK((range.code == 64 || range.code == 78));
  CHECK(range.says("3:2"));
}

TEST_CASE("an endpoint that nobody serves is tried until the join deadline, and elrun says for whom it waits", "[bad-input]") {
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const Ended ended = run("elrun", {"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_conf",
                                    "is_host=0,join_timeout=3", "--no_python", "/bin/true"});
  INFO(ended.output);
  CHECK(ended.code == 170);
  CHECK(ended.says(endpoint));
}

TEST_CASE("a node that waits for the others says how many are missing, and gives up at the join deadline", "[bad-input]") {
  const std::string endpoint = "127.0.0.1:" + std::to_string(free_port());
  const Ended ended = run("elrun", {"--nnodes", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint, "--rdzv_conf", "join_timeout=3",
                                    "--no_python", "/bin/true"});
  INFO(ended.output);
  CHECK(ended.code == 170);
  CHECK(ended.says("1 of 2"));
}
#endif
