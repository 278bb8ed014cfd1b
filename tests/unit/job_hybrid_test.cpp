// State that every node has all of, cut over its ranks: the same bits on any nodes, and no loss of one of them is a loss of state.

#include <algorithm>

#include "lib/job/declare/memory_table.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/placed_world.hpp"

#include <elrun/verify.hpp>

namespace elrun::test {
namespace {

Plan hybrid_plan(int stage, std::uint64_t slots = 8, Exchange exchange = Exchange::automatic) {
  return placed_plan(hybrid, stage, slots, exchange);
}

}  // namespace

TEST_CASE("hybrid placements end with the bits of one process alone, on any nodes", "[job][hybrid]") {
  Selection selection;
  for (const std::uint64_t slots : {8u, 5u, 1u})
    for (const int stage : {1, 2, 3})
      for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
        for (const Nodes& nodes : {Nodes{0}, Nodes{0, 1}, Nodes{0, 0, 1}, Nodes{0, 1, 1, 1}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 0, 1, 0},
                                   Nodes{2, 2, 2, 0, 1, 1}, Nodes{0, 0, 0, 0, 1, 1, 1}, Nodes{0, 0, 0, 1, 1, 2, 2, 3}}) {
          if (!selection.takes()) continue;
          INFO(slots << " slots, hybrid(zero(" << stage << ")), gradients " << (exchange == Exchange::per_slot ? "per slot" : "per step")
                     << ", " << text_of(nodes));
          const auto members = run_world({.world = static_cast<std::uint32_t>(nodes.size()), .nodes = nodes},
                                         toy({.plan = hybrid_plan(stage, slots, exchange)}));
          for (const Member& m : members) ended_alike(m, slots);
        }
  for (const int stage : {2, 3})
    for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot}) {
      INFO("leaves in bf16, hybrid(zero(" << stage << "))");
      Plan plan = hybrid_plan(stage, 8, exchange);
      plan.leaves = DType::bf16;
      for (const Member& m : run_world({.world = 5, .nodes = {0, 0, 1, 1, 1}}, toy({.plan = plan}))) ended_alike(m, 8, DType::bf16);
    }
}

TEST_CASE("a worker that dies leaves its part of the state on another node: nothing decided is done again", "[job][hybrid]") {
  Selection selection;
  for (const int stage : {1, 2, 3})
    for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 1, 1, 1}})
      for (std::uint64_t at = stage == 3 ? 20 : 6; at < (stage == 1 ? 30u : 110u); at += stage == 1 ? 3 : 13) {
        if (!selection.takes()) continue;
        INFO("hybrid(zero(" << stage << ")), " << text_of(nodes) << ", at exchange " << at);
        ElasticWorld world{4, {{Fate::Kind::dies, 3, at, true}}, toy({.plan = hybrid_plan(stage)}), nodes};
        auto& results = world.wait();
        REQUIRE(results.size() == 5);
        for (const std::size_t i : {0u, 1u, 2u, 4u}) ended_alike(results[i]);
        for (const std::size_t survivor : {0u, 1u, 2u}) CHECK(results[survivor].steps.size() == 7);
        CHECK(world.generations() == 2);
        CHECK_FALSE(said(world, "was lost"));
        CHECK_FALSE(said(world, "from nothing"));
      }
}

TEST_CASE("a node that dies leaves all of the state on another, of any size", "[job][hybrid]") {
  Selection selection;
  for (const int stage : {1, 2, 3})
    for (const bool comes_back : {true, false})
      for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{1, 0, 0, 0}, Nodes{0, 0, 0, 1}})
        for (std::uint64_t at = stage == 3 ? 20 : 7; at < (stage == 1 ? 30u : 110u); at += stage == 1 ? 7 : 31) {
          if (!selection.takes()) continue;
          INFO("hybrid(zero(" << stage << ")), " << text_of(nodes) << ", at exchange " << at << (comes_back ? ", comes back" : ""));
          ElasticWorld world{4, {{Fate::Kind::dies, 0, at, comes_back, true}}, toy({.plan = hybrid_plan(stage)}), nodes};
          auto& results = world.wait();
          for (std::size_t i = 0; i < results.size(); ++i) {
            const bool was_there = i < nodes.size();
            CHECK(world.was_killed(i) == (was_there && nodes[i] == nodes[0]));
            if (world.was_killed(i)) continue;
            ended_alike(results[i]);
            if (was_there) CHECK(results[i].steps.size() == 7);
          }
          CHECK(world.generations() == 2);
          CHECK_FALSE(said(world, "was lost"));
          CHECK_FALSE(said(world, "from nothing"));
        }
}

TEST_CASE("what dies on both nodes comes from a checkpoint, or the job begins again", "[job][hybrid]") {
  for (const int stage : {2, 3})
    for (const bool saves : {true, false}) {
      INFO("hybrid(zero(" << stage << ")), " << (saves ? "with" : "without") << " checkpoints");
      const TemporaryDirectory root;
      CheckpointOptions checkpoint;
      if (saves) checkpoint = {.directory = root.path(), .every = 2};
      // Part 1 of both; the second goes before it could give anything.
      ElasticWorld world{4,
                         {{Fate::Kind::dies, 1, 80, false}, {Fate::Kind::dies, 2, 1, false}},
                         toy({.plan = hybrid_plan(stage), .checkpoint = checkpoint}),
                         {0, 0, 1, 1}};
      auto& results = world.wait();
      for (const std::size_t survivor : {0u, 2u}) ended_alike(results[survivor]);
      CHECK(said(world, "was lost"));
    }
}

TEST_CASE("a checkpoint of hybrid state has each byte once, and goes on under any placement", "[job][hybrid]") {
  const auto bytes_in = [](const std::string& directory) {
    std::uint64_t sum = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator{directory})
      if (entry.is_regular_file()) sum += entry.file_size();
    return sum;
  };
  std::uint64_t plain = 0;
  for (const int stage : {0, 1, 2, 3})
    for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 1, 1, 1}}) {
      INFO("hybrid(zero(" << stage << ")), " << text_of(nodes));
      const TemporaryDirectory root;
      const CheckpointOptions checkpoint{.directory = root.path(), .every = 5, .keep = 2};
      for (const Member& m :
           run_world({.world = 4, .nodes = nodes}, toy({.plan = hybrid_plan(stage), .checkpoint = checkpoint, .stop_after = 5})))
        REQUIRE_FALSE(m.failure.has_value());
      const std::uint64_t size = bytes_in(root.path());
      if (plain == 0) plain = size;
      CHECK(size < plain + 8192);  // the tables of the parts differ
      const Plan after = stage % 2 == 0 ? toy_plan(3 - stage) : hybrid_plan(3 - stage);
      for (const Member& m : run_world({.world = 3, .generation = 2, .nodes = {0, 1, 1}}, toy({.plan = after, .checkpoint = checkpoint})))
        ended_alike(m);
      for (const Member& m :
           run_world({.world = 5, .generation = 3, .nodes = {0, 0, 0, 1, 1}}, toy({.plan = hybrid_plan(stage), .checkpoint = checkpoint})))
        ended_alike(m);
    }
}

TEST_CASE("weights come from the own node, and gradients travel to all", "[job][hybrid]") {
  const auto sent = [](const Placement& placement, const Nodes& nodes, bool trains, bool overlap = false) {
    std::uint64_t bytes = 0;
    const auto members =
        run_world({.world = static_cast<std::uint32_t>(nodes.size()), .bytes_sent = &bytes, .nodes = nodes}, [&](Job& job, Member& me) {
          Plan plan = toy_plan(0);
          plan.placement = placement, plan.steps = 1, plan.overlap = overlap;
          job.configure(plan);
          Unit unit = job.unit("u");
          const auto w = unit.tensor<float>("w", {64 * 1024});
          job.seal();
          if (!job.restore()) {
            const auto scope = unit.use();
            std::ranges::fill(w.span(), 0.5f);
          }
          while (auto step = job.next_step()) {
            for (Slot& slot : step->slots()) {
              if (trains) {
                const auto scope = unit.use_grad();
              } else {
                const auto scope = unit.use();
              }
              slot.report(1, 1);
            }
            step->apply(AdamW{}, {.lr = 0.1f});
          }
          me.outcome = job.outcome();
        });
    for (const Member& m : members) REQUIRE(m.outcome.has_value());
    return bytes;
  };
  constexpr std::uint64_t whole = 64 * 1024 * sizeof(float), small = whole / 8;
  // With a scope of weights on each of two ranks before the first step, then 8 in slots. One rank to a node: none travel.
  const std::uint64_t apart = sent(hybrid(zero(3, Exchange::per_step)), {0, 1}, false);
  const std::uint64_t together = sent(hybrid(zero(3, Exchange::per_step)), {0, 0}, false);
  const std::uint64_t gradients = whole;         // the tree's two nodes: half of each goes to the other
  const std::uint64_t sums = whole;              // and the sums, which both hold
  const std::uint64_t weights = 10 * whole / 2;  // half of them are not here
  CHECK(apart >= gradients + sums);
  CHECK(apart < gradients + sums + small);
  CHECK(together >= gradients + weights);
  CHECK(together < gradients + weights + small);
  // With overlap they stay, for the same unit will be used next: they come before the step, and in its first slot.
  const std::uint64_t stay = sent(hybrid(zero(3, Exchange::per_step)), {0, 0}, false, true);
  CHECK(stay >= gradients + 4 * whole / 2);
  CHECK(stay < gradients + 4 * whole / 2 + small);
}

TEST_CASE("verify compares the nodes' copies, and names the node that differs", "[job][hybrid][verify]") {
  for (const Nodes& nodes : {Nodes{0, 0, 1, 1, 2, 2}, Nodes{0, 0, 1, 1, 1, 2}})
    for (const bool spoils : {false, true}) {
      INFO(text_of(nodes));
      std::mutex mutex;
      std::vector<Verification> found;
      const auto members = run_world({.world = 6, .nodes = nodes}, [&](Job& job, Member& me) {
        Plan plan = hybrid_plan(3);
        plan.steps = 1;
        job.configure(plan);
        Unit unit = job.unit("u");
        const auto w = unit.tensor<float>("w", {9000});
        job.seal();
        if (!job.restore()) {
          const auto scope = unit.use();
          std::ranges::fill(w.span(), 0.5f);
        }
        while (auto step = job.next_step()) {
          for (Slot& slot : step->slots()) slot.report(1, 1);
          step->apply(AdamW{}, {.lr = 0.1f});
        }
        if (spoils && JobAccess::rank(job) == 3) {
          float& x = JobAccess::moment(job, 1)[7];
          x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ 1u);
        }
        Verification v = verify(job);
        me.outcome = job.outcome();
        const std::lock_guard lock{mutex};
        found.push_back(std::move(v));
      });
      for (const Member& m : members) REQUIRE(m.outcome.has_value());
      REQUIRE(found.size() == 6);
      for (const Verification& v : found) {
        CHECK(v.decided);
        CHECK(v.compared == 3);
        CHECK(v.difference.has_value() == spoils);
        if (!v.difference) continue;
        CHECK(v.difference->kind == "exp_avg_sq");
        CHECK(v.difference->rank == Rank{2});
        CHECK(v.difference->outvoted);
        CHECK(v.difference->what.find("the node of rank 2 has other bits than most nodes") != std::string::npos);
      }
    }
}

TEST_CASE("what hybrid placements take is worked out by node, and shown where there are several", "[job][hybrid][memory]") {
  const std::vector<UnitSpec> units{{"a", {{"w", DType::f32, {8 * 1024}, {}}}}};
  constexpr std::uint64_t g = 1024 * sizeof(float);
  // Four ranks, two to a node: half of the state on each; a quarter is folded here, and the sum of the shard kept beside it.
  const RankBytes expected{
      .parameters = 4 * g, .gradients = (3 * 2 + 4) * g, .optimizer = 8 * g, .exchange = 0, .in_use = (8 + 3 * 2 + 4) * g};
  for (const RankBytes& told : bytes_by_rank(lay_out(units), hybrid(zero(3)), Optimizer::adamw, 8, 4, 2)) {
    CHECK(told.parameters == expected.parameters);
    CHECK(told.gradients == expected.gradients);
    CHECK(told.optimizer == expected.optimizer);
    CHECK(told.in_use == expected.in_use);
  }
  CHECK(bytes_by_rank(lay_out(units), hybrid(zero(2)), Optimizer::adamw, 8, 4, 4) ==
        bytes_by_rank(lay_out(units), zero(2), Optimizer::adamw, 8, 4, 4));
  const std::string several = memory_table(toy_plan(0), units, 4, 2), one = memory_table(toy_plan(0), units, 4, 0);
  CHECK(several.find(", 2 to a node\n") != std::string::npos);
  CHECK(several.find("\nhybrid(zero(2)) ") != std::string::npos);
  CHECK(several.find("\nhybrid(zero(3)) ") != std::string::npos);
  CHECK(one.find("hybrid") == std::string::npos);
}

TEST_CASE("any history of workers and nodes ends with the same bits", "[job][hybrid][elastic]") {
  for_all_seeds(60, [](Rng& rng) { any_history(rng, hybrid); });
}

}  // namespace elrun::test
