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

void run_all(std::uint64_t count, Where where) {
  Ran sum;
  std::uint64_t seeds = 0;
  test::for_all_seeds(count, [&](Rng& rng) {
    const Ran ran = run_checkpoints(rng.next64(), where);
    if (!ran.broken.empty()) FAIL(ran.broken << last_of(ran));
    sum.acknowledged += ran.acknowledged, sum.starts += ran.starts, sum.faults += ran.faults, sum.frozen += ran.frozen;
    sum.damages += ran.damages, sum.failed_saves += ran.failed_saves;
    if (++seeds % 10'000 == 0) WARN(fmt::format("{} seeds, {} saves acknowledged", seeds, sum.acknowledged));
  });
  WARN(fmt::format("{} saves acknowledged, {} failed, {} starts, {} faults of the storage, {} processes frozen, {} checkpoints damaged",
                   sum.acknowledged, sum.failed_saves, sum.starts, sum.faults, sum.frozen, sum.damages));
}

/// Runs until a rule is broken.
Ran search(Where where, Bug planted, std::uint64_t& seeds) {
  Ran ran;
  for (seeds = 0; seeds < seeds_of_planted && ran.broken.empty(); ++seeds) {
    Rng rng{seeds};
    ran = run_checkpoints(rng.next64(), where, planted);
  }
  return ran;
}

}  // namespace

TEST_CASE("under any faults no promise is broken, no wrong bit is loaded, and a save succeeds in the end", "[checkpoint]") {
  run_all(std::getenv("ELRUN_FULL") != nullptr ? 10'000 : 2'000, Where::files);
}

TEST_CASE("the same on an object store", "[checkpoint]") { run_all(std::getenv("ELRUN_FULL") != nullptr ? 2'000 : 500, Where::objects); }

TEST_CASE("each planted bug is found", "[checkpoint]") {
  for (const BugText& bug : bug_texts) {
    DYNAMIC_SECTION(bug.name) {
      INFO(bug.what);
      for (const Where where : {Where::files, Where::objects}) {
        std::uint64_t seeds = 0;
        const Ran ran = search(where, bug.bug, seeds);
        CHECK(ran.broken != "");
        WARN(fmt::format("{}{}: found after {} seeds: {}", bug.name, where == Where::objects ? ", on an object store" : "", seeds,
                         ran.broken));
      }
    }
  }
}

TEST_CASE("a tier that does not wait until its lists are whole is found", "[checkpoint]") {
  std::uint64_t seeds = 0;
  const Ran ran = search(Where::objects_with_stale_lists, Bug::none, seeds);
  CHECK(ran.broken != "");
  WARN(fmt::format("found after {} seeds: {}", seeds, ran.broken));
}
