// What a change of the world leaves behind: the memory of the new shard and nothing of the old one, and every decided step,
// also where the change was cut short.

#include <algorithm>
#include <set>

#include "lib/job/memory.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

Layout toy_layout() {
  std::vector<UnitSpec> units;
  for (const ToyTensor& t : toy_tensors()) {
    if (units.empty() || units.back().name != t.unit) units.push_back({t.unit, {}});
    units.back().tensors.push_back({t.name, DType::f32, {t.size}, t.options});
  }
  return lay_out(units);
}

std::uint64_t plain_hash() {
  static const std::uint64_t hash = run_world({}, toy({.plan = toy_plan(0)}))[0].outcome->state_hash;
  return hash;
}

/// All end with the state of an undisturbed job, and no decided step was done again.
void nothing_is_lost(std::uint32_t members, const std::vector<Fate>& fates, int stage) {
  ElasticWorld world{members, fates, toy({.plan = toy_plan(stage)})};
  auto& results = world.wait();
  for (const Member& m : results) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == plain_hash());
  }
  CHECK(results[0].steps.size() == 7);
  CHECK(std::none_of(world.lines().begin(), world.lines().end(), [](const std::string& l) { return l.find("was lost") != l.npos; }));
}

}  // namespace

TEST_CASE("after a change of the world a rank holds its new shard of the parameters, and nothing of the old one", "[job][elastic]") {
  const Layout layout = toy_layout();
  for (const bool dies : {false, true}) {
    const TemporaryDirectory root;
    CheckpointOptions checkpoint;
    if (dies) checkpoint = {.directory = root.path(), .every = 1};
    std::atomic<std::uint64_t> wrong{0};
    std::atomic<std::uint64_t> slots_in[4] = {};
    const auto look = [&](Job& job, std::uint64_t, Slot&) {
      const Job::Impl& impl = JobAccess::impl(job);
      const std::uint32_t size = impl.world.size();
      ++slots_in[size];
      wrong += impl.parameters().held_bytes() != bytes_by_rank(layout, zero(3), Optimizer::adamw, 8, size)[impl.world.rank()].parameters;
    };
    const std::uint32_t before = dies ? 3 : 2, after = dies ? 2 : 3;  // cuts that differ on every rank but the first
    ElasticWorld world{before, {{dies ? Fate::Kind::dies : Fate::Kind::grows, before - 1, 90, false}}, toy({.plan = toy_plan(3), .checkpoint = checkpoint, .in_slot = look})};
    for (const Member& m : world.wait())
      if (m.outcome) CHECK(m.outcome->state_hash == plain_hash());
    INFO((dies ? "one of three dies" : "one joins two"));
    CHECK(slots_in[before] > 0);
    CHECK(slots_in[after] > 0);
    CHECK(wrong == 0);
  }
}

TEST_CASE("when shards are being cut anew and the world changes again, the old ones still count", "[job][elastic]") {
  for (const int stage : {1, 3})
    for (std::uint64_t at = 0; at < 12; ++at) {
      INFO("zero(" << stage << "), at exchange " << at << " of the second generation");
      nothing_is_lost(2, {{Fate::Kind::grows, 0, stage == 1 ? 15u : 90u, false}, {Fate::Kind::breaks, 1, at, false}}, stage);
    }
}

TEST_CASE("of members that hold one cut some may have begun a generation that the others never saw", "[job][elastic]") {
  for (const int stage : {1, 3})
    for (std::uint64_t at = 0; at < 8; ++at) {
      INFO("zero(" << stage << "), at exchange " << at << " of the second generation");
      nothing_is_lost(3, {{Fate::Kind::breaks, 0, stage == 1 ? 15u : 90u, false}, {Fate::Kind::splits, 1, at, false}}, stage);
    }
}

TEST_CASE("a part of the state that two members bring is given by one of them", "[job][elastic]") {
  const auto member = [](std::uint32_t parts, std::uint32_t part) { return Standing{.has_state = true, .knowledge = {5, 5, 5}, .parts = parts, .part = part}; };
  const Heritage twice = heritage(std::vector{member(2, 0), member(2, 1), member(2, 1)}, 5, false);
  CHECK(twice.complete);
  CHECK(twice.givers == std::vector<std::uint32_t>{0, 1});
  CHECK(twice.brings == std::vector<std::optional<std::uint32_t>>{0, 1, std::nullopt});
  // Of two cuts the one counts that is whole.
  const Heritage mixed = heritage(std::vector{member(3, 2), member(2, 1), member(2, 0)}, 5, false);
  CHECK(mixed.complete);
  CHECK(mixed.givers == std::vector<std::uint32_t>{2, 1});
  CHECK_FALSE(heritage(std::vector{member(3, 2), member(2, 1), member(3, 0)}, 5, false).complete);
}

}  // namespace elrun::test
