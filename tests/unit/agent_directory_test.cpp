// Where agents of this user are looked for.
#include "launcher/process/agent_directory.hpp"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/temporary_directory.hpp"

namespace elrun::launcher {
namespace {

TEST_CASE("agents are looked for in the user's own place alone, where that can be written", "[agent_directory]") {
  const test::TemporaryDirectory own;
  const Variables environment{{"XDG_RUNTIME_DIR", own.path()}};
  const auto elsewhere = make_agent_directory({});
  REQUIRE(elsewhere.ok());
  CHECK(agent_directories(environment).empty());  // else `elrun drain` would take agents of another place away
  const auto here = make_agent_directory(environment);
  REQUIRE(here.ok());
  CHECK(agent_directories(environment) == std::vector<Path>{*here});
  const std::vector<Path> of_other_places = agent_directories({{"XDG_RUNTIME_DIR", ""}});
  CHECK(std::ranges::find(of_other_places, *elsewhere) != of_other_places.end());
  std::filesystem::remove_all(*elsewhere);
}

}  // namespace
}  // namespace elrun::launcher
