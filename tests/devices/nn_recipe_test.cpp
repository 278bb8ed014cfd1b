// Recipes as text: what is written is read back, what is wrong is told at once, and a file is written once.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <elrun/result.hpp>

#include "samples/nn/recipe.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

using namespace nn;
using Catch::Matchers::Contains;
using elrun::test::TemporaryDirectory;

namespace {

const ProductShape forward{64, 96, 32, false, true, false}, weight{96, 32, 64, true, false, true};

Algorithm algorithm(std::uint32_t id) {
  Algorithm a;
  for (auto& value : a.values) value = 0;
  a.values[0] = id, a.values[1] = 4294967295;
  return a;
}

Recipe two() { return {"cuBLASLt 13.1.0", "NVIDIA H200", {{forward, algorithm(66)}, {weight, algorithm(3)}}}; }

std::vector<std::string> problems_of(const std::string& text) {
  std::vector<std::string> problems;
  (void)parse_recipe(text, problems);
  return problems;
}

template <class Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const elrun::Error& error) {
    CHECK(error.failure().remedy == elrun::Remedy::fix_config);
    return error.failure().what;
  }
  return "";
}

}  // namespace

TEST_CASE("a recipe is read back as it was written, also of a library that knows no clusters", "[devices]") {
  Recipe recipe = two();
  recipe.algorithms[weight].values[7].reset(), recipe.algorithms[weight].values[8].reset();
  std::vector<std::string> problems;
  const Recipe again = parse_recipe(recipe.text(), problems);
  CHECK(problems.empty());
  CHECK(again.library == recipe.library);
  CHECK(again.device == recipe.device);
  CHECK(again.algorithms == recipe.algorithms);
  CHECK(again.hash() == recipe.hash());
  CHECK(
      recipe.text() ==
      "elrun recipe 1, cuBLASLt 13.1.0, chosen on NVIDIA H200\n"
      "rows=64 columns=96 k=32 a=n b=t c=bf16: id=66 tile=4294967295 stages=0 splits=0 reduction=0 swizzle=0 custom=0 inner=0 cluster=0\n"
      "rows=96 columns=32 k=64 a=t b=n c=float: id=3 tile=4294967295 stages=0 splits=0 reduction=0 swizzle=0 custom=0 inner=- cluster=-\n");
}

TEST_CASE("a recipe's hash is of shapes and algorithms, and not of where they were chosen", "[devices]") {
  Recipe elsewhere = two(), other = two(), fewer = two();
  elsewhere.device = "NVIDIA H100 80GB HBM3";
  CHECK(elsewhere.hash() == two().hash());
  other.algorithms[weight].values[8] = 1;
  CHECK(other.hash() != two().hash());
  fewer.algorithms.erase(weight);
  CHECK(fewer.hash() != two().hash());
}

TEST_CASE("all that is wrong with a recipe's text is told at once, with its line", "[devices]") {
  const std::string good = two().text(), line = good.substr(good.find('\n') + 1, good.find('\n', good.find('\n') + 1) - good.find('\n'));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = line;
    REQUIRE(changed.find(from) != std::string::npos);
    return changed.replace(changed.find(from), from.size(), to);
  };
  const auto problems = problems_of(good + "# a remark\n" + with("k=32", "k=0") + with("b=t", "b=x") +
                                    with("tile=4294967295", "tile=4294967296") + with("stages=0", "stages=-") +
                                    with("cluster=0", "cluster=0 colour=3") + with("splits=0", "splits=4") + line + "\n" + "rows=8");
  REQUIRE(problems.size() == 11);
  CHECK_THAT(problems[0], Contains("last line has no end"));
  CHECK_THAT(problems[1], Contains("line 4: '# a remark' stands where 'rows=' is expected"));
  CHECK_THAT(problems[2], Contains("line 5: ") && Contains("where a whole number from 1 to "));
  CHECK_THAT(problems[3], Contains("line 6: ") && Contains("where 't' or 'n' is expected"));
  CHECK_THAT(problems[4], Contains("line 7: ") && Contains("where a whole number from 0 to 4294967295 is expected"));
  CHECK_THAT(problems[5], Contains("line 8: ") && Contains("a whole number"));
  CHECK_THAT(problems[6], Contains("line 9: ' colour=3' stands where the line's end is expected"));
  CHECK_THAT(problems[7], Contains("line 10: ") && Contains("splits=4") && Contains("reduction=2"));
  CHECK_THAT(problems[8], Contains("line 11: ") && Contains("comes a second time"));
  CHECK_THAT(problems[9], Contains("line 12: it ends where 'rows='"));
  CHECK_THAT(problems[10], Contains("line 13: it ends where ' columns='"));
  CHECK(problems_of(good + with("rows=64", "rows=65").replace(0, 0, "") + with("rows=64", "rows=66")).empty());
}

TEST_CASE("a file that is no recipe is told by its first line", "[devices]") {
  for (const char* text : {"", "\n", "elrun recipe 2, cuBLASLt 13.1.0, chosen on NVIDIA H200\n", "elrun recipe 1, cuBLASLt 13.1.0\n",
                           "\x7f"
                           "ELF\x02\n"}) {
    CAPTURE(text);
    const auto problems = problems_of(text);
    REQUIRE(problems.size() == 1);
    CHECK_THAT(problems[0], Contains("line 1: ") && Contains("as a recipe begins"));
  }
  CHECK_THAT(problems_of(std::string(500, '\x1b') + "\n").at(0), Contains("'" + std::string(80, '?') + "...'"));
}

TEST_CASE("every cut of a recipe's text is told", "[devices]") {
  const std::string text = two().text();
  for (std::size_t size = 0; size < text.size(); ++size) {
    CAPTURE(size);
    if (size == 0 || text[size - 1] != '\n') CHECK(!problems_of(text.substr(0, size)).empty());
  }
}

TEST_CASE("of several that write a recipe at once the first one decides, and nothing else is left", "[devices]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/recipe";
  CHECK(!read_recipe(path));
  std::vector<int> first(8);
  {
    std::vector<std::jthread> writers;
    for (std::size_t i = 0; i < first.size(); ++i)
      writers.emplace_back([&, i] { first[i] = write_recipe(path, std::string(5000, static_cast<char>('a' + i))); });
  }
  REQUIRE(std::ranges::count(first, 1) == 1);
  const auto winner = static_cast<std::size_t>(std::ranges::find(first, 1) - first.begin());
  CHECK(read_recipe(path) == std::string(5000, static_cast<char>('a' + winner)));
  CHECK(std::distance(std::filesystem::directory_iterator{folder.path()}, {}) == 1);
}

TEST_CASE("a recipe that cannot be read or written is told with its path", "[devices]") {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/recipe", nowhere = folder.path() + "/no/recipe";
  CHECK_THAT(failure_of([&] { (void)read_recipe(folder.path()); }), Contains(folder.path()) && Contains("is no regular file"));
  CHECK_THAT(failure_of([&] { write_recipe(nowhere, "x"); }), Contains(nowhere) && Contains("No such file or directory; make its folder"));
  std::ofstream{path} << std::string(recipe_bytes_max + 1, 'x');
  CHECK_THAT(failure_of([&] { (void)read_recipe(path); }), Contains(path) && Contains("more than 1048576 bytes"));
}
