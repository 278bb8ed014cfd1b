// gpt in bf16 by a recipe: what a node would choose by itself plays no part any more. The fake cuBLASLt has two algorithms whose bits differ, and FAKEGPU_CUBLAS_FIRST says
// which of them it chooses first.

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"

using namespace elrun::test;

namespace {

using Environment = std::map<std::string, std::string>;

Environment on_devices(const Environment& more = {}) {
  Environment all{{"ELRUN_DEVICE", "cuda"}, {"FAKEGPU_DEVICES", "4"}};
  for (const auto& [name, value] : more) all[name] = value;
  return all;
}
const Environment chooses_otherwise{{"FAKEGPU_CUBLAS_FIRST", "2"}};

std::vector<std::string> arguments(const Folder& folder, unsigned steps, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all{"--precision", "bf16", "--channels",     "32", "--heads",       "2", "--lr", "0.002",
                               "--context",   "16",   "--global-batch", "3",  "--micro-batch", "1"};
  all.insert(all.end(), more.begin(), more.end());
  return gpt_arguments(folder / "text", steps, all);
}

/// One process.
Ended gpt(const Folder& folder, unsigned steps, const std::vector<std::string>& more = {}, const Environment& environment = {}) {
  return run(test_program_path("gpt_on_fake_devices"), arguments(folder, steps, more), on_devices(environment));
}
/// Two workers, whose command begins with `first`, a shell's words; "$@" is gpt with its arguments.
Ended two_workers(const Folder& folder, const std::string& command, const std::vector<std::string>& more) {
  std::vector<std::string> all{
      "--standalone", "--nproc_per_node", "2", "--no_python", "/bin/sh", "-c", command, "worker", test_program_path("gpt_on_fake_devices")};
  for (const std::string& each : arguments(folder, 2, more)) all.push_back(each);
  return run("elrun", all, on_devices());
}

std::string hash_of(const Ended& ended) {
  const auto at = ended.output.find(" algorithms, hash=");
  return at == std::string::npos ? "" : ended.output.substr(at + 18, 16);
}
std::size_t count(const std::string& text, const std::string& what) {
  std::size_t found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

std::string content(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream{path}.rdbuf();
  return out.str();
}
void replace(std::string& text, const std::string& from, const std::string& to) {
  REQUIRE(text.find(from) != std::string::npos);
  text.replace(text.find(from), from.size(), to);
}

constexpr const char* wrote = "gpt: wrote the recipe ";

}  // namespace

TEST_CASE("gpt comes to the state of its recipe, wherever cuBLASLt would choose otherwise", "[devices]") {
  const Folder folder;
  const std::vector<std::string> recipe{"--recipe", folder / "recipe", "--sample", "2"};
  const Ended alone = gpt(folder, 2), other = gpt(folder, 2, {}, chooses_otherwise);
  const Ended written = gpt(folder, 2, recipe), again = gpt(folder, 2, recipe, chooses_otherwise);
  const Ended two = two_workers(folder, "FAKEGPU_CUBLAS_FIRST=2 exec \"$@\"", {"--recipe", folder / "recipe", "--zero", "3"});
  for (const Ended* ended : {&alone, &other, &written, &again, &two}) {
    INFO(ended->output);
    REQUIRE(ended->code == 0);
    CHECK(!ended->says("fakegpu"));
  }
  CHECK(other.state != alone.state);  // else the rest shows nothing
  CHECK(written.state == alone.state);
  CHECK(again.state == alone.state);
  CHECK(two.state == alone.state);
  CHECK(count(written.output, wrote) == 1);
  CHECK((!again.says(wrote) && !two.says(wrote)));
  CHECK(hash_of(written).size() == 16);
  CHECK(hash_of(again) == hash_of(written));
  CHECK(hash_of(two) == hash_of(written));
  CHECK(count(content(folder / "recipe"), "\n") == 1 + 15);  // three products of each of a block's four layers and of the head
}

TEST_CASE("workers that would choose otherwise take the recipe of the one that writes it", "[devices]") {
  const Folder folder;
  const Ended ended = two_workers(folder, "FAKEGPU_CUBLAS_FIRST=$((RANK + 1)) exec \"$@\"", {"--recipe", folder / "recipe"});
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK(count(ended.output, wrote) == 1);
  const Ended alone = gpt(folder, 2, {"--recipe", folder / "recipe"});
  INFO(alone.output);
  CHECK(hash_of(alone) == hash_of(ended));
  CHECK(alone.state == ended.state);
}

TEST_CASE("two workers with different recipes are refused", "[devices]") {
  const Folder folder;
  const Ended first = gpt(folder, 1, {"--recipe", folder / "recipe0"}),
              second = gpt(folder, 1, {"--recipe", folder / "recipe1"}, chooses_otherwise);
  REQUIRE((first.code == 0 && second.code == 0));
  REQUIRE(hash_of(first) != hash_of(second));
  const Ended ended = two_workers(folder, "exec \"$@\" --recipe '" + folder / "recipe" + "'$RANK", {});
  INFO(ended.output);
  CHECK(ended.code == 78);
  CHECK((ended.says("by cuBLASLt 13.") && ended.says(", recipe " + hash_of(first)) && ended.says(", recipe " + hash_of(second))));
}

TEST_CASE("a checkpoint goes on by its recipe where cuBLASLt would choose otherwise, and by nothing else", "[devices]") {
  const Folder folder;
  const auto part = [&](unsigned steps, std::vector<std::string> more, const Environment& environment = {}) {
    more.insert(more.end(), {"--checkpoint", folder / "checkpoints"});
    return gpt(folder, steps, more, environment);
  };
  const std::vector<std::string> recipe{"--recipe", folder / "recipe"};
  const Ended begun = part(1, recipe);
  INFO(begun.output);
  REQUIRE(begun.code == 0);
  const auto refused = [&](const Ended& ended, const std::string& why) {
    INFO(ended.output << "\nexpected: " << why);
    CHECK(ended.code == 78);
    CHECK(ended.says(why));
  };
  refused(part(2, {}), "numeric class");
  refused(part(2, {"--recipe", folder / "another"}, chooses_otherwise), "numeric class");
  refused(part(2, recipe, {{"FAKEGPU_MULTIPROCESSORS", "2"}}), "bf16 on sm_90 with 2 multiprocessors by cuBLASLt ");
  refused(part(2, recipe, {{"FAKEGPU_CUBLAS_VERSION", "139900"}}), "and cuBLASLt 13.99.0 is found here");
  const Ended ended = part(2, recipe, chooses_otherwise);
  INFO(ended.output);
  CHECK(ended.code == 0);
  CHECK((ended.says("step=2 ") && !ended.says("step=1 ")));
}

TEST_CASE("all that is wrong with a recipe for this model and device is told at once, with the remedy", "[devices]") {
  const Folder folder;
  const std::vector<std::string> recipe{"--recipe", folder / "recipe"};
  REQUIRE(gpt(folder, 1, recipe).code == 0);
  std::vector<std::string> lines;
  std::istringstream in{content(folder / "recipe")};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  REQUIRE(lines.size() == 16);
  const std::string shape = lines[1].substr(0, lines[1].find(':'));
  replace(lines[1], "rows=", "rows=7");  // another one, so that this one is missing
  replace(lines[2], "id=1", "id=9");
  replace(lines[3], "tile=", "tile=9");
  replace(lines[4], "custom=0", "custom=1");
  replace(lines[5], "cluster=", "cluster=99999999");
  lines.emplace_back("what is this?");
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  std::ofstream{folder / "recipe"} << text;
  const Ended ended = gpt(folder, 1, recipe);
  INFO(text << ended.output);
  CHECK(ended.code == 78);
  CHECK(ended.says("line 17: 'what is this?' stands where 'rows=' is expected"));
  CHECK(ended.says("it has no algorithm for " + shape));
  CHECK(ended.says("is refused here (cublasLtMatmulAlgoInit: CUBLAS_STATUS_INVALID_VALUE)"));
  CHECK(ended.says("is refused here (cublasLtMatmulAlgoCheck: CUBLAS_STATUS_NOT_SUPPORTED)"));
  CHECK(ended.says("is refused here (cublasLtMatmulAlgoConfigSetAttribute of cluster: CUBLAS_STATUS_INVALID_VALUE)"));
  CHECK(ended.says("wants 1073741824 bytes of workspace, and has 33554432"));
  CHECK(ended.says("name a file that does not exist, and one is written"));
  const Ended nowhere = gpt(folder, 1, {"--recipe", folder / "no/recipe"});
  INFO(nowhere.output);
  CHECK(nowhere.code == 78);
  CHECK(nowhere.says("cannot be written: No such file or directory; make its folder"));
}
