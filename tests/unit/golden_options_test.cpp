#include "tests/golden/options.hpp"

#include <limits>

#include "tests/support/catch.hpp"

namespace elrun::golden {
namespace {

using Arguments = std::vector<std::string>;

}  // namespace

TEST_CASE("portions of a list are all of it, each thing once, in even lengths", "[golden]") {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{200}, std::size_t{4032}})
    for (const std::uint64_t of : {1u, 2u, 3u, 10u, 28u, 1000u}) {
      std::size_t at = 0;
      for (std::uint64_t k = 1; k <= of; ++k) {
        const Portion p = portion(size, {k, of});
        CHECK(p.begin == at);
        CHECK(p.end - p.begin >= size / of);
        CHECK(p.end - p.begin <= size / of + 1);
        at = p.end;
      }
      CHECK(at == size);
    }
}

TEST_CASE("what nothing is chosen of is run whole, in portions too", "[golden]") {
  for (const Arguments& arguments : {Arguments{}, {"--logs", "there"}, {"--part", "2/10"}}) {
    const auto options = parse(arguments);
    REQUIRE(options.has_value());
    CHECK(options->all_cells);
    CHECK(options->histories == 200);
  }
  CHECK(parse({"--part", "2/10"})->part.number == 2);
  CHECK(parse({"--part", "2/10"})->part.of == 10);
  CHECK(parse({"--cells", "all"})->histories == 0);
}

TEST_CASE("one cell and one history are chosen by their numbers, the first included", "[golden]") {
  const auto cell = parse({"--cell", "0", "--steps", "300"});
  REQUIRE(cell.has_value());
  CHECK(cell->cell == 0);
  CHECK(cell->histories == 0);
  CHECK(cell->steps == 300);
  const auto history = parse({"--history", "0"});
  REQUIRE(history.has_value());
  CHECK(history->history == 0);
  CHECK_FALSE(history->all_cells);
}

TEST_CASE("a command line that says something else is refused", "[golden]") {
  const Arguments wrong[] = {{"--cells"},
                             {"--cells", ""},
                             {"--cells", "7x"},
                             {"--cells", "-1"},
                             {"--cells", "0"},
                             {"--part", "0/10"},
                             {"--part", "11/10"},
                             {"--part", "3"},
                             {"--part", "1/0"},
                             {"--steps", "99"},
                             {"--unknown", "1"},
                             {"--cell", "1", "--history", "1"},
                             {"--cell", "1", "--cells", "all"},
                             {"--histories", std::to_string(std::numeric_limits<std::uint64_t>::max())},
                             {"--seed", "99999999999999999999"}};
  for (const Arguments& arguments : wrong) {
    INFO(arguments.front() << " " << arguments.back());
    CHECK_FALSE(parse(arguments).has_value());
  }
}

}  // namespace elrun::golden
