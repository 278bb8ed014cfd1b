// The flat sample, before and after: how few lines differ, that the numbers stay, and that any world ends in one state.

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>

#include "tests/support/gpt_job.hpp"
#include "tests/support/property.hpp"

using namespace elrun::test;
using elrun::Rng;

namespace {

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in{source_path("samples/" + path)};
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

/// Lines that both texts have, in the same order: what `diff` leaves alone.
std::size_t common(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::size_t> row(b.size() + 1, 0);
  for (const std::string& line : a)
    for (std::size_t j = 0, diagonal = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = line == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  return row.back();
}

/// The loss of every step as it was printed, nine digits: they tell one float from every other.
std::vector<std::string> losses(const std::string& output) {
  std::vector<std::string> out;
  std::istringstream in{output};
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("step=")) out.push_back(line);
  return out;
}

std::vector<std::string> flat_under_elrun(std::vector<std::string> options, const std::vector<std::string>& flat) {
  options.insert(options.end(), {"--no_python", program_path("flat_after")});
  options.insert(options.end(), flat.begin(), flat.end());
  return options;
}

std::string tail(const std::string& text) { return text.substr(text.size() > 6000 ? text.size() - 6000 : 0); }

}  // namespace

TEST_CASE("a plain program becomes elastic in fewer than 150 changed lines, and the README has their number", "[golden]") {
  const auto before = lines_of("flat/before.cpp"), after = lines_of("flat/after.cpp"), readme = lines_of("README.md");
  REQUIRE(before.size() > 150);
  const std::size_t same = common(before, after), removed = before.size() - same, added = after.size() - same;
  CHECK(removed + added < 150);
  const std::string told = fmt::format("{} lines added, {} removed", added, removed);
  INFO(told);
  CHECK(std::any_of(readme.begin(), readme.end(), [&](const std::string& line) { return line.find(told) != std::string::npos; }));
}

TEST_CASE("with one slot per step the elastic program prints the plain one's numbers, digit by digit", "[golden]") {
  const Folder folder;
  for (const std::vector<std::string>& data : {std::vector<std::string>{}, {"--data", folder / "text"}}) {
    std::vector<std::string> arguments{"--steps", "100"};
    arguments.insert(arguments.end(), data.begin(), data.end());
    const Ended before = run("flat_before", arguments);
    arguments.insert(arguments.end(), {"--micro-batch", "32"});
    const Ended after = run("flat_after", arguments);
    INFO(before.output << after.output);
    CHECK(before.code == 0);
    CHECK(after.code == 0);
    CHECK(losses(before.output).size() == 100);
    CHECK(losses(before.output) == losses(after.output));
  }
}

TEST_CASE("any number of workers, placement and death ends in one state", "[golden]") {
  const Ended bare = run("flat_after", {"--steps", "40"});
  INFO(bare.output);
  REQUIRE(bare.code == 0);
  REQUIRE(bare.state.size() == 16);
  for (const char* workers : {"1", "2", "3"}) {
    const Ended ended =
        run("elrun", flat_under_elrun({"--nproc_per_node", workers}, {"--steps", "40", "--zero", *workers == '3' ? "1" : "0"}));
    INFO(workers << " workers\n" << tail(ended.output));
    CHECK(ended.code == 0);
    CHECK(ended.says("on " + std::string{workers} + " rank(s)"));
    CHECK(ended.state == bare.state);
  }
}

TEST_CASE("a worker killed under way: the survivors go on, and the state is the undisturbed one's", "[golden]") {
  // So many lines do not fit into a pipe: the job cannot end before the test has read some, and killed.
  const std::vector<std::string> arguments{"--steps", "3000"};
  const Ended bare = run("flat_after", arguments);
  REQUIRE(bare.state.size() == 16);
  for_all_seeds(1, [&](Rng& rng) {
    const auto job = start("elrun", flat_under_elrun({"--nproc_per_node", "3"}, arguments));
    REQUIRE(until(*job, "step=" + std::to_string(1 + rng.below(50)) + " "));
    const auto living = job->children_named("flat_after");
    REQUIRE(living.size() == 3);
    REQUIRE(::kill(living[rng.below(3)], SIGKILL) == 0);
    const Ended ended = finish(*job);
    INFO(tail(ended.output));
    CHECK(ended.code == 0);
    CHECK(ended.says("2 go on here in the same process"));
    CHECK(ended.state == bare.state);
  });
}
