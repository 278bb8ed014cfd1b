// `elrun ckpt` on roots that the sample gpt wrote, at other placements and world sizes, whole and damaged.

#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"
#include "tests/support/mounted.hpp"

using namespace elrun::test;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

Ended ckpt(std::vector<std::string> words) {
  words.insert(words.begin(), "ckpt");
  return run("elrun", std::move(words));
}

Json as_json(std::vector<std::string> words, int code = 0) {
  words.emplace_back("--json");
  const Ended ended = ckpt(std::move(words));
  INFO(ended.output);
  REQUIRE(ended.code == code);
  return Json::parse(ended.output);
}

/// Trains 40 steps with a checkpoint at each tenth.
void train(const Folder& folder, const std::string& root, unsigned world, const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments{"--every", "10", "--keep", "4", "--checkpoint", root};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Ended ended = run("elrun", under_elrun({"--nproc_per_node", std::to_string(world)}, gpt_arguments(folder / "text", 40, arguments)));
  INFO(ended.output);
  REQUIRE(ended.code == 0);
}

std::string directory_of(const std::string& root, unsigned step) {
  for (const auto& entry : fs::directory_iterator{root + "/ckpt"})
    if (entry.path().filename().string().starts_with("s" + std::string(12 - std::to_string(step).size(), '0') + std::to_string(step) + "."))
      return entry.path();
  FAIL("no checkpoint of step " << step);
  return {};
}

std::vector<std::string> shards_of(const std::string& directory) {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator{directory})
    if (entry.path().extension() == ".safetensors") all.push_back(entry.path());
  std::sort(all.begin(), all.end());
  return all;
}

void flip(const std::string& path, std::uint64_t byte) {
  std::fstream file{path, std::ios::in | std::ios::out | std::ios::binary};
  file.seekg(static_cast<std::streamoff>(byte));
  const char was = static_cast<char>(file.get());
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(static_cast<char>(was ^ 1));
  REQUIRE(file.good());
}

}  // namespace

TEST_CASE("checkpoints of every placement are listed, whole, and equal to those of one process", "[golden]") {
  const Folder folder;
  train(folder, folder / "one", 1);
  const std::vector<std::vector<std::string>> placements{
      {"--zero", "0"},         {"--zero", "1"},        {"--zero", "2", "--exchange", "slot"},
      {"--zero", "3"},         {"--zero", "hybrid2"},  {"--zero", "hybrid3", "--exchange", "slot"},
      {"--zero", "mirrored1"}, {"--zero", "mirrored3"}};
  unsigned world = 2;
  for (const auto& placement : placements) {
    const std::string root = folder / ("root" + std::to_string(world) + placement[1]);
    INFO(placement[1] << " world " << world);
    train(folder, root, world, placement);
    const Json list = as_json({"ls", root});
    REQUIRE(list["checkpoints"].size() == 4);
    for (const Json& one : list["checkpoints"]) {
      CHECK(one["state"] == "acknowledged");
      CHECK(one["world"] == world);
    }
    CHECK(list["start"]["step"] == 40);
    const Ended verified = ckpt({"verify", root});
    INFO(verified.output);
    CHECK(verified.code == 0);
    CHECK(verified.says(": whole, "));
    const Ended same = ckpt({"diff", root + ":30", folder / "one" + std::string{":30"}});
    INFO(same.output);
    CHECK(same.code == 0);
    CHECK(same.says("The states are equal."));
    const Ended other = ckpt({"diff", root + ":30", folder / "one"});
    INFO(other.output);
    CHECK(other.code == 1);
    CHECK(other.says("elements, first at ["));
    world = world == 2 ? 3 : 2;
  }
}

TEST_CASE("what a checkpoint holds is told, and what ranks of another world would read", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  train(folder, root, 2, {"--zero", "3"});
  const Ended text = ckpt({"inspect", root});
  INFO(text.output);
  CHECK(text.code == 0);
  for (const char* part :
       {"step 40, fence 1, attempt 1", "acknowledged", "seed: 7", "exp_avg F32", "r00001-of-00002.safetensors", "[32, 32]"})
    CHECK(text.says(part));
  CHECK_FALSE(text.says("\x1b"));
  const Json one = as_json({"inspect", root, "20@1", "--plan", "3", "--zero", "3"});
  CHECK(one["step"] == 20);
  REQUIRE(one["readers"].size() == 3);
  std::uint64_t needs = 0, host = 0;
  for (const Json& reader : one["readers"]) needs += reader["needs_bytes"].get<std::uint64_t>();
  for (const Json& value : one["host_state"]) host += value["bytes"].get<std::uint64_t>();
  CHECK(needs == one["state_bytes"].get<std::uint64_t>() + 3 * host);
  CHECK(ckpt({"inspect", directory_of(root, 10), "--plan=2"}).says("a world of 2 would read"));
}

TEST_CASE("all that is damaged is named, and a damaged checkpoint is listed and passed over", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  train(folder, root, 2);
  const std::string newest = directory_of(root, 40), older = directory_of(root, 20);
  const std::vector<std::string> shards = shards_of(newest);
  REQUIRE(shards.size() == 2);
  for (const std::string& shard : shards) flip(shard, 100'000);  // behind the header, in the second block of 64 KiB
  flip(shards_of(older)[1], 100'000);
  const Ended one = ckpt({"verify", root, "40"});
  INFO(one.output);
  CHECK(one.code == 1);
  CHECK(one.says("2 damages found"));
  for (const char* shard :
       {"r00000-of-00002.safetensors: block 1 (bytes 65536 to ", "r00001-of-00002.safetensors: block 1 (bytes 65536 to "})
    CHECK(one.says(shard));
  const Json all = as_json({"verify", root}, 1);
  REQUIRE(all["checkpoints"].size() == 4);
  CHECK(all["checkpoints"][0]["damage"].size() == 2);
  CHECK(all["checkpoints"][1]["whole"] == true);
  CHECK(all["checkpoints"][2]["damage"][0]["block"] == 1);

  const Ended compared = ckpt({"diff", root + ":40", root + ":30"});
  INFO(compared.output);
  CHECK(compared.code == 65);
  CHECK(compared.says("block 1"));

  // Records of another step: what is there is not the checkpoint that was named.
  for (const char* file : {"/MANIFEST.json", "/COMMIT"})
    fs::copy_file(directory_of(root, 30) + file, newest + file, fs::copy_options::overwrite_existing);
  const Ended misplaced = ckpt({"diff", root + ":40", root + ":30"});
  INFO(misplaced.output);
  CHECK(misplaced.code == 65);
  CHECK(misplaced.says("a file in the wrong place"));

  // A cut manifest: a start would pass it over, and here nothing is marked.
  fs::resize_file(newest + "/MANIFEST.json", 100);
  const Ended list = ckpt({"ls", root});
  INFO(list.output);
  CHECK(list.code == 0);
  CHECK(list.says("damaged: "));
  CHECK(list.says("A start would go on from step 30"));
  CHECK_FALSE(fs::exists(newest + "/QUARANTINE"));
  CHECK(ckpt({"inspect", root, "40"}).code == 65);

  // A loss: what a start would say, in advance.
  fs::remove_all(newest);
  const Ended lost = ckpt({"ls", root});
  CHECK(lost.code == 0);
  CHECK(lost.says("acknowledged, but missing"));
  CHECK(lost.says("--begin_anew 40@1"));
}

TEST_CASE("what was verified before the storage refuses is told, and then why it ended", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  train(folder, root, 1);
  flip(shards_of(directory_of(root, 40))[0], 100'000);
  const std::string refuses = shards_of(directory_of(root, 20))[0];
  fs::remove(refuses);
  fs::create_symlink("/proc/sys/vm/drop_caches", refuses);  // a file that nobody may read, root neither
  const Ended json = ckpt({"verify", root, "--json"}), text = ckpt({"verify", root});
  for (const Ended& ended : {json, text}) {
    INFO(ended.output);
    CHECK(ended.code == 70);
    CHECK(ended.says("Permission denied"));
    CHECK_FALSE(ended.says(fs::path{directory_of(root, 10)}.filename().string()));
  }
  CHECK(text.says("not read to its end, 0 damages found"));
  const Json all = Json::parse(json.output.substr(0, json.output.rfind("elrun: ckpt: ")));
  REQUIRE(all["checkpoints"].size() == 3);
  CHECK(all["whole"] == false);
  CHECK(all["checkpoints"][0]["damage"].size() == 1);
  CHECK(all["checkpoints"][1]["whole"] == true);
  CHECK(all["checkpoints"][2]["failure"].get<std::string>().find(refuses) != std::string::npos);
}

TEST_CASE("a read-only root is read like any other", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  train(folder, root, 1);
  const auto mounted = Mounted::read_only(root);
  if (!mounted) return;
  CHECK(ckpt({"ls", root}).says("A start would go on from step 40"));
  CHECK(ckpt({"verify", root}).code == 0);
  CHECK(ckpt({"diff", root, root + ":40"}).code == 0);
  CHECK(ckpt({"inspect", root}).code == 0);
}

TEST_CASE("a wrong command line is refused with what to write instead, and what is not there by its name", "[golden]") {
  const Folder folder;
  const std::string root = folder / "ck";
  const auto refused = [](std::vector<std::string> words, int code, const std::string& text) {
    const Ended ended = ckpt(std::move(words));
    INFO(ended.output);
    CHECK(ended.code == code);
    CHECK(ended.says(text));
  };
  refused({"--help"}, 0, "usage: elrun ckpt ls ROOT");
  refused({}, 64, "ls, inspect, verify or diff");
  refused({"list", root}, 64, "is none of");
  refused({"verfy", root}, 64, "is verify meant?");
  refused({"ls"}, 64, "ROOT is not given");
  refused({"ls", root, "--plan", "2"}, 64, "belong to inspect");
  refused({"inspect", root, "forty"}, 64, "give a STEP, or STEP@FENCE");
  refused({"inspect", root, "--plan", "0"}, 64, "--plan 0: must be a number of ranks");
  refused({"inspect", root, "--plan", "2", "--zero", "4"}, 64, "--zero 4");
  refused({"diff", root}, 64, "B is not given");
  refused({"verify", root, "--colour"}, 64, "no such option");
  refused({"ls", root}, 66, "it is not there; name the directory that the job was given");
  refused({"ls", folder / "text"}, 66, "it is no directory");
  fs::create_directory(root);
  refused({"ls", root}, 66, "it is empty");
  train(folder, root, 1);
  refused({"inspect", root, "7"}, 66, "holds no checkpoint of step 7; it holds 10@1, 20@1, 30@1, 40@1");
}
