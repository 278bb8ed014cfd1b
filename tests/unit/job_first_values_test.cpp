// Initial values, where parameters are sharded: each rank keeps its shard of what its program wrote, so they have to be alike,
// and made of what was there.

#include <algorithm>

#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"

namespace elrun::test {
namespace {

/// Three units, one with a frozen tensor; `write` makes the initial values.
struct Values {
  static constexpr std::size_t count = 3;
  std::vector<Unit> units;
  std::vector<Tensor<float>> weights;
  Tensor<float> fixed;
  explicit Values(Job& job) {
    for (std::size_t u = 0; u < count; ++u) {
      units.push_back(job.unit(fmt::format("layer {}", u)));
      weights.push_back(units[u].tensor<float>("w", {5000 + u}));
    }
    fixed = units[0].tensor<float>("fixed", {100}, {.frozen = true});
  }
};

Program valued(const std::function<void(Job&, Values&)>& write) {
  return [=](Job& job, Member& me) {
    job.configure(toy_plan(3));
    Values values{job};
    job.seal();
    if (!job.restore()) write(job, values);
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        for (std::size_t u = 0; u < Values::count; ++u) {
          const auto scope = values.units[u].use_grad();
          add_gradient(values.weights[u], slot.rng());
        }
        slot.report(1.0f, 1);
      }
      me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
    }
    me.outcome = job.outcome();
  };
}

void fill(Job& job, Values& values) {
  for (std::size_t u = 0; u < Values::count; ++u) {
    const auto scope = values.units[u].use();
    const RandomStream random = job.rng(fmt::format("layer {}", u));
    values.weights[u].set(*normals(random, values.weights[u].size()));
  }
}

}  // namespace

TEST_CASE("initial values that differ are told when the world changes before the first step, too", "[job][sharing]") {
  const auto differing = valued([](Job& job, Values& values) {
    fill(job, values);
    const auto scope = values.units[1].use();
    values.weights[1].data()[5] = job.prints() ? 1.0f : 0.0f;  // on the first rank alone
  });
  for (const auto kind : {Fate::Kind::breaks, Fate::Kind::grows})
    for (std::uint64_t at = 4; at < 20; ++at) {
      INFO((kind == Fate::Kind::grows ? "the world grows" : "the world breaks") << " at exchange " << at);
      ElasticWorld world{3, {{kind, 1, at, false}}, differing};
      const auto& members = world.wait();
      CHECK(std::ranges::any_of(members, [](const Member& m) { return m.failure && contains(m.failure->what, "job.rng(name)"); }));
    }
}

TEST_CASE("initial values of frozen tensors that differ are told, where the others are sharded", "[job][sharing]") {
  const auto members = run_world({.world = 3}, valued([](Job& job, Values& values) {
                                   fill(job, values);
                                   values.fixed.data()[7] = job.prints() ? 1.0f : 0.0f;
                                 }));
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK(contains(m.failure->what, "job.rng(name)"));
  }
}

TEST_CASE("initial values that are made of others are made anew when these could not be gathered", "[job][sharing]") {
  const auto chained = valued([](Job& job, Values& values) {
    fill(job, values);
    for (std::size_t u = 1; u < Values::count; ++u) {
      const auto from = values.units[u - 1].use();
      const auto into = values.units[u].use();
      for (std::uint64_t i = 0; i < values.weights[u - 1].size(); ++i) values.weights[u].data()[i] += values.weights[u - 1].data()[i];
    }
  });
  const std::uint64_t undisturbed = run_world({}, chained)[0].outcome->state_hash;
  for (const auto kind : {Fate::Kind::breaks, Fate::Kind::splits})
    for (std::uint64_t at = 4; at < 24; at += stride(1)) {
      INFO((kind == Fate::Kind::splits ? "the world is split" : "the world breaks") << " at exchange " << at);
      ElasticWorld world{3, {{kind, 1, at, false}}, chained};
      for (const Member& m : world.wait()) {
        INFO((m.failure ? message(*m.failure) : ""));
        REQUIRE(m.outcome.has_value());
        CHECK(m.outcome->state_hash == undisturbed);
      }
    }
}

}  // namespace elrun::test
