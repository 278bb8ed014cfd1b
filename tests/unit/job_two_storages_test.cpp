// Jobs whose nodes do not see one storage: the mount is missing on one of them.

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "lib/base/failure.hpp"
#include "tests/support/faulty_files.hpp"
#include "tests/support/forwarding_files.hpp"
#include "tests/support/shared_clock.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

struct TwoStorages {
  SharedClock clock;
  FaultyFiles shared, bare;
  std::vector<Member> run(std::uint64_t generation, std::uint32_t world, std::optional<std::uint32_t> blind) {
    WorldOptions options{.world = world, .generation = generation};
    for (std::uint32_t rank = 0; rank < world; ++rank) options.nodes.push_back(rank);
    options.clock = &clock;
    options.files_of = [=, this](std::uint32_t rank) -> Files& { return rank == blind ? bare : shared; };
    options.sleep = [this](Duration time) { clock.advance(time); };
    return run_world(options, toy({.plan = toy_plan(1), .checkpoint = {.directory = "/root", .every = 2}}));
  }
};

/// The first one that ends: the others may hear of that before they hear why.
bool ends_with_78(const std::vector<Member>& members) {
  return std::ranges::any_of(members, [](const Member& m) { return m.failure && exit_code(*m.failure) == 78; });
}

}  // namespace

TEST_CASE("a job whose leader alone does not see the checkpoints ends with 78, and does not begin at step 0", "[job]") {
  TwoStorages nodes;
  for (const Member& m : nodes.run(1, 3, {})) REQUIRE(m.outcome.has_value());
  const auto before = nodes.shared.all_files();
  // A fresh job: its agents and its store remember nothing.
  const auto members = nodes.run(2, 3, 0);
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(m.decided == 0);
    CHECK(contains(m.failure->what, "rank 1 (node node 1) sees checkpoint s000000000007.g00000001.a01"));
    CHECK(contains(m.failure->what, "rank 0 (node node 0) sees no run there (2 of 3 ranks see what rank 0 does not)"));
    CHECK(contains(m.failure->what, "mount the same storage on all nodes"));
  }
  CHECK(ends_with_78(members));
  CHECK(nodes.bare.all_files().empty());
  CHECK(nodes.shared.all_files() == before);
  CHECK(std::any_of(members[0].lines.begin(), members[0].lines.end(),
                    [](const std::string& line) { return contains(line, "try 1 failed") && contains(line, "rank 1 (node node 1) sees"); }));
}

TEST_CASE("a mount that comes while a start waits for it is gone on from", "[job]") {
  const Duration final_wait = GENERATE(Duration{0s}, Duration{600s});  // of a storage that does not answer: this one does
  TwoStorages nodes;
  for (const Member& m : nodes.run(1, 2, {})) REQUIRE(m.outcome.has_value());
  std::atomic<bool> is_mounted = false;
  WorldOptions options{.world = 2, .generation = 2, .clock = &nodes.clock};
  ForwardingFiles late{nodes.shared, [&](const char*, const Path& path) {
                         return is_mounted ? Result<void>{} : Result<void>{from_errno(ENOENT, "open " + path.string())};
                       }};
  options.files_of = [&](std::uint32_t rank) -> Files& { return rank == 0 ? static_cast<Files&>(late) : nodes.shared; };
  options.sleep = [&](Duration time) { nodes.clock.advance(time), is_mounted = true; };
  const auto members =
      run_world(options, toy({.plan = toy_plan(1), .checkpoint = {.directory = "/root", .every = 2, .final_wait = final_wait}}));
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    CHECK(m.outcome.has_value());
  }
  CHECK(std::any_of(members[0].lines.begin(), members[0].lines.end(),
                    [](const std::string& line) { return contains(line, "going on from checkpoint s000000000007.g00000001.a01"); }));
}

TEST_CASE("what a rank's storage fails of is told with that rank and its node", "[job]") {
  TwoStorages nodes;
  const auto is_of_rank_1 = [](const Member& m) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(m.failure->rank == Rank{1});
    CHECK(m.failure->node == "node 1");
  };
  SECTION("a load, which the leader then does for itself") {
    for (const Member& m : nodes.run(1, 3, {})) REQUIRE(m.outcome.has_value());
    const auto members = nodes.run(2, 3, 1);
    for (const Member& m : members) is_of_rank_1(m);
    CHECK(ends_with_78(members));
  }
  SECTION("a save, and the final one") {
    const auto members = nodes.run(1, 3, 1);
    for (const Member& m : members) is_of_rank_1(m);
    CHECK(ends_with_78(members));
    CHECK(std::any_of(members[0].lines.begin(), members[0].lines.end(), [](const std::string& line) {
      return contains(line, "the checkpoint of step 2 could not be saved") && contains(line, "rank 1") && contains(line, "[node: node 1]");
    }));
  }
}

}  // namespace elrun::test
