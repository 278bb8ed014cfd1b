/// \file The commit machine, starts and retention in a simulated world, by seed; and with known bugs planted, each of which is found.

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "tests/support/property.hpp"
#include "tests/support/sim/checkpoint_world.hpp"

using namespace elrun;
using namespace elrun::checkpoint_sim;

namespace {

constexpr std::uint64_t seeds_of_planted = 10'000;  // none needs so many: MEASURED.md
constexpr std::size_t lines_shown = 150;

std::string last_of(const Ran& ran) {
  std::string text;
  for (std::size_t i = ran.trace.size() > lines_shown ? ran.trace.size() - lines_shown : 0; i < ran.trace.size(); ++i)
    text += "\n  " + ran.trace[i];
  return text;
}

}  // namespace

TEST_CASE("under any faults no promise is broken, no wrong bit is loaded, and a save succeeds in the end", "[checkpoint]") {
  Ran sum;
  std::uint64_t seeds = 0;
  test::for_all_seeds(std::getenv("ELRUN_FULL") != nullptr ? 10'000 : 2'000, [&](Rng& rng) {
    const Ran ran = run_checkpoints(rng.next64());
    if (!ran.broken.empty()) FAIL(ran.broken << last_of(ran));
    sum.acknowledged += ran.acknowledged, sum.starts += ran.starts, sum.faults += ran.faults, sum.frozen += ran.frozen;
    sum.damages += ran.damages, sum.failed_saves += ran.failed_saves;
    if (++seeds % 10'000 == 0) WARN(fmt::format("{} seeds, {} saves acknowledged", seeds, sum.acknowledged));
  });
  WARN(fmt::format("{} saves acknowledged, {} failed, {} starts, {} faults of the storage, {} processes frozen, {} checkpoints damaged",
                   sum.acknowledged, sum.failed_saves, sum.starts, sum.faults, sum.frozen, sum.damages));
}

TEST_CASE("each planted bug is found", "[checkpoint]") {
  for (const BugText& bug : bug_texts) {
    DYNAMIC_SECTION(bug.name) {
      std::uint64_t seed = 0;
      Ran ran;
      for (; seed < seeds_of_planted && ran.broken.empty(); ++seed) {
        Rng rng{seed};
        ran = run_checkpoints(rng.next64(), bug.bug);
      }
      INFO(bug.what);
      CHECK(ran.broken != "");
      WARN(fmt::format("{}: found after {} seeds: {}", bug.name, seed, ran.broken));
    }
  }
}
