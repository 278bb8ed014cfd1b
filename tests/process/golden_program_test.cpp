// elrun_golden finds a run that ends in another state, and tells how to run just that one again. Under it is a program that trains
// nothing: its state is wrong on purpose where it is told `--zero 1`.

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {
namespace {

constexpr const char* stand_in = R"(#!/bin/sh
case "$*" in
  *--help*) echo "  --zero 0..1"; exit 0;;
  *"--leaves bf16"*) state=bf16bf16bf16bf16;;
  *"--zero 1"*) state=0123456789abcdef;;
  *) state=f32f32f32f32f32f;;
esac
[ "${RANK:-0}" = 0 ] && echo "done steps=200 state=$state"
exit 0
)";

/// Programs for elrun_golden: the launcher, and what stands in for the sample.
class Programs {
 public:
  Programs() {
    std::filesystem::create_symlink(std::filesystem::absolute(program_path("elrun")), folder_.path() + "/elrun");
    const std::string gpt = folder_.path() + "/gpt";
    std::ofstream{gpt} << stand_in;
    std::filesystem::permissions(gpt, std::filesystem::perms::owner_all);
  }
  [[nodiscard]] Job::Setting golden(std::vector<std::string> arguments) const {
    return {.arguments = std::move(arguments), .environment = {{"ELRUN_BIN", folder_.path()}}, .program = "elrun_golden"};
  }

 private:
  TemporaryDirectory folder_;
};

/// The words after the first `again: ` of what a program said.
std::vector<std::string> again_in(const std::string& said) {
  const auto at = said.find("again: ");
  if (at == std::string::npos) return {};
  std::istringstream line{said.substr(at + 7, said.find('\n', at) - at - 7)};
  std::vector<std::string> words;
  for (std::string word; line >> word;) words.push_back(word);
  return words;
}

}  // namespace

TEST_CASE("a cell that fails is told with the command line that runs it alone", "[golden]") {
  const Programs programs;
  Job some{programs.golden({"--cells", "all", "--part", "15/28"})};  // of 56 cells two, the first of --zero 1
  CHECK(some.wait(Wait{240000}) == 1);
  INFO(some.output());
  CHECK(some.says("2 of 56 cells"));
  CHECK(some.says("FAILED cell 28 (1 x 1 workers, 1 thread, shm, --zero 1): the state is 0123456789abcdef"));
  CHECK(some.says("FAILED cell 29 "));
  CHECK(some.says("4 runs, 2 failed"));

  const std::vector<std::string> words = again_in(some.output());
  REQUIRE(words.size() == 3);
  CHECK(words[0] == program_path("elrun_golden"));
  Job alone{programs.golden({words.begin() + 1, words.end()})};
  CHECK(alone.wait(Wait{240000}) == 1);
  INFO(alone.output());
  CHECK(alone.says("FAILED cell 28 "));
  CHECK(alone.says("3 runs, 1 failed"));

  Job good{programs.golden({"--cell", "0"})};
  CHECK(good.wait(Wait{240000}) == 0);
  CHECK(good.says("3 runs, 0 failed"));
  Job none{programs.golden({"--cell", "56"})};
  CHECK(none.wait(Wait{240000}) == 64);
  CHECK(none.says("there is no cell 56"));
}

}  // namespace elrun::test
