#include "lib/job/declare/plan.hpp"

#include <fmt/format.h>

#include "tests/support/catch.hpp"

namespace elrun::test {
namespace {

Plan good() {
  Plan p;
  p.global_batch = 8, p.micro_batch = 2, p.samples = 100, p.steps = 10, p.seed = 1;
  return p;
}

}  // namespace

TEST_CASE("a plan that holds has no problems", "[job]") {
  CHECK(good().problems().empty());
  CHECK(good().slots() == 4);
}

TEST_CASE("every stage has both evaluations, and sharded gradients travel in every slot when nobody says otherwise", "[job]") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const Exchange exchange : {Exchange::automatic, Exchange::per_step, Exchange::per_slot}) {
      Plan p = good();
      p.placement = zero(stage, exchange);
      CHECK(p.problems().empty());
      CHECK(name_of(p.placement) == fmt::format("zero({})", stage));
      p.placement = hybrid(p.placement);
      CHECK(p.problems().empty());
      CHECK(name_of(p.placement) == (stage == 0 ? "zero(0)" : fmt::format("hybrid(zero({}))", stage)));
      p.placement = mirrored(zero(stage, exchange));
      CHECK(p.problems().empty());
      CHECK(name_of(p.placement) == (stage == 0 ? "zero(0)" : fmt::format("mirrored(zero({}))", stage)));
    }
    CHECK(exchanges_per_slot(zero(stage)) == (stage >= 2));
    CHECK(exchanges_per_slot(hybrid(zero(stage))) == (stage >= 2));
    CHECK(exchanges_per_slot(mirrored(zero(stage))) == (stage >= 2));
    CHECK(exchanges_per_slot(zero(stage, Exchange::per_slot)));
    CHECK_FALSE(exchanges_per_slot(zero(stage, Exchange::per_step)));
  }
}

TEST_CASE("all problems of plan and options are told at once", "[job]") {
  Plan p;
  p.global_batch = 7, p.micro_batch = 2, p.placement.parameters = Sharding::sharded;
  CHECK(problems(p, {.directory = "", .every = 5, .keep = 1}).size() == 6);  // divisor, samples, steps, placement, keep, every
}

TEST_CASE("in-memory checkpoints are for state of which a worker's part may be the only one, and need no directory", "[job][in_memory]") {
  const auto count = [](const Placement& placement) {
    Plan p = good();
    p.placement = placement;
    return problems(p, {.in_memory_every = 5}).size();
  };
  for (const int stage : {1, 2, 3}) {
    CHECK(count(zero(stage)) == 0);
    CHECK(count(hybrid(zero(stage))) == 0);
    CHECK(count(mirrored(zero(stage))) == 1);
  }
  CHECK(count(zero(0)) == 1);
}

TEST_CASE("each contradiction in a plan is a problem of its own", "[job]") {
  const auto broken = [](auto change) {
    Plan p = good();
    change(p);
    return p.problems();
  };
  CHECK(broken([](Plan& p) { p.global_batch = 0; }).size() == 1);
  CHECK(broken([](Plan& p) { p.micro_batch = 0; }).size() == 1);
  CHECK(broken([](Plan& p) { p.micro_batch = 3; }).size() == 1);
  CHECK(broken([](Plan& p) { p.global_batch = 1 << 20, p.micro_batch = 1; }).size() == 1);
  CHECK(broken([](Plan& p) { p.samples = 0; }).size() == 1);
  CHECK(broken([](Plan& p) { p.steps = std::uint64_t{1} << 61; }).size() == 1);
  CHECK(broken([](Plan& p) { p.placement = zero(3), p.placement.optimizer = Sharding::replicated; }).size() == 1);
  CHECK(broken([](Plan& p) { p.placement.exchange = static_cast<Exchange>(9); }).size() == 1);
  CHECK(broken([](Plan& p) { p.reduce = static_cast<Reduce>(9); }).size() == 1);
  CHECK(broken([](Plan& p) { p.reduce = Reduce::fast, p.placement = zero(2); }).size() == 1);
  CHECK(broken([](Plan& p) { p.reduce = Reduce::fast, p.placement = zero(2, Exchange::per_step); }).empty());
  CHECK(broken([](Plan& p) { p.leaves = DType::bf16; }).empty());
  CHECK(broken([](Plan& p) { p.leaves = DType::f64; }).size() == 1);
  CHECK(broken([](Plan& p) { p.leaves = DType::bf16, p.reduce = Reduce::fast; }).size() == 1);
  CHECK(broken([](Plan& p) { p.placement.parameters = Sharding::sharded; }).size() == 1);
  CHECK(broken([](Plan& p) { p.numeric = "two\nlines"; }).size() == 1);
  CHECK(broken([](Plan& p) { p.optimizer = static_cast<Optimizer>(9); }).size() == 1);
}

TEST_CASE("placement and steps may change in a job's life, all else makes another job", "[job]") {
  Plan p = good();
  const std::string hash = identity(p).hash;
  p.placement = zero(1), p.steps = 1000;
  CHECK(identity(p).hash == hash);
  const auto changed = [&](auto change) {
    Plan q = good();
    change(q);
    return identity(q).hash != hash;
  };
  CHECK(changed([](Plan& q) { q.seed = 2; }));
  CHECK(changed([](Plan& q) { q.micro_batch = 4; }));
  CHECK(changed([](Plan& q) { q.global_batch = 16; }));
  CHECK(changed([](Plan& q) { q.samples = 101; }));
  CHECK(changed([](Plan& q) { q.data_hash = 5; }));
  CHECK(changed([](Plan& q) { q.optimizer = Optimizer::lion; }));
  CHECK(changed([](Plan& q) { q.leaves = DType::bf16; }));
  CHECK(changed([](Plan& q) { q.numeric = "mine 2"; }));
}

TEST_CASE("a plan with any number of units in bf16 fits into a checkpoint, and each name is part of it", "[job]") {
  const auto units = [](std::size_t count, std::size_t first = 0) {
    std::vector<UnitSpec> out(count);
    for (std::size_t i = 0; i < count; ++i) {
      out[i].name = fmt::format("blocks.{}.mlp", first + i);
      out[i].tensors.push_back({.name = "weight", .dtype = DType::bf16});
    }
    return out;
  };
  CHECK(identity(good(), units(2)).description == identity(good()).description + "weights in bf16: blocks.0.mlp blocks.1.mlp\n");
  const PlanIdentity many = identity(good(), units(2000));
  CHECK(problems(many).empty());
  CHECK(many.description.find("weights in bf16: 2000 units, whose names have SHA-256 ") != std::string::npos);
  CHECK(many.hash != identity(good(), units(2000, 1)).hash);
  CHECK(many.hash != identity(good(), units(2001)).hash);
  CHECK(many.hash == identity(good(), units(2000)).hash);
  // Where names become too long for a checkpoint, and not before: those of existing checkpoints stay as they are.
  std::size_t listed = 0;
  for (std::size_t count = 1; count < 2000; ++count) {
    const std::string text = identity(good(), units(count)).description;
    const bool is_listed = text.find("SHA-256") == std::string::npos;
    REQUIRE(text.size() <= plan_description_max);
    REQUIRE((is_listed || listed > 0));
    if (is_listed) {
      REQUIRE(listed == count - 1);
      listed = count;
    }
  }
  CHECK(identity(good(), units(listed)).description.size() + 40 > plan_description_max);
  CHECK(listed > 500);
}

}  // namespace elrun::test
