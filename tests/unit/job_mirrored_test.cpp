// State of which each shard is on two ranks: the same bits in any world, and no loss of one rank, or of one node, takes a decided step back.

#include <algorithm>
#include <mutex>

#include "lib/job/declare/memory_report.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/placed_world.hpp"

#include <elrun/verify.hpp>

namespace elrun::test {
namespace {

Plan mirrored_plan(int stage, std::uint64_t slots = 8, Exchange exchange = Exchange::automatic) {
  return placed_plan(mirrored, stage, slots, exchange);
}

/// One unit of 64 granules, one step: `trains` with gradients, else weights alone are used. What all ranks sent each other.
std::uint64_t bytes_sent(const Placement& placement, const Nodes& nodes, std::uint64_t slots, bool trains) {
  std::uint64_t bytes = 0;
  const auto members =
      run_world({.world = static_cast<std::uint32_t>(nodes.size()), .bytes_sent = &bytes, .nodes = nodes}, [&](Job& job, Member& me) {
        Plan plan = toy_plan(0, slots);
        plan.placement = placement, plan.steps = 1, plan.overlap = false;
        job.configure(plan);
        Unit unit = job.unit("u");
        const auto w = unit.tensor<float>("w", {64 * granule});
        job.seal();
        if (!job.restore() && placement.parameters == Sharding::replicated) {
          const auto scope = unit.use();
          std::ranges::fill(w.span(), 0.5f);
        }
        while (auto step = job.next_step()) {
          for (Slot& slot : step->slots()) {
            if (trains) {
              const auto scope = unit.use_grad();
            }
            slot.report(1, 1);
          }
          step->apply(AdamW{}, {.lr = 0.1f});
        }
        me.outcome = job.outcome();
      });
  for (const Member& m : members) REQUIRE(m.outcome.has_value());
  return bytes;
}

}  // namespace

TEST_CASE("mirrored placements end with the bits of one process alone, in any world", "[job][mirrored]") {
  Selection selection;
  for (const std::uint64_t slots : {8u, 5u, 1u})
    for (const int stage : {1, 2, 3})
      for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
        for (const Nodes& nodes : {Nodes{0}, Nodes{0, 0}, Nodes{0, 1}, Nodes{0, 1, 2}, Nodes{0, 0, 1}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 1, 1},
                                   Nodes{0, 0, 1, 1, 2}, Nodes{0, 1, 0, 1, 0}, Nodes{0, 0, 0, 0, 0}, Nodes{2, 2, 2, 0, 1, 1},
                                   Nodes{0, 0, 0, 1, 1, 1, 2}, Nodes{0, 0, 0, 1, 1, 2, 2, 3}}) {
          if (!selection.takes()) continue;
          INFO(slots << " slots, mirrored(zero(" << stage << ")), gradients " << (exchange == Exchange::per_slot ? "per slot" : "per step")
                     << ", " << text_of(nodes));
          const auto members = run_world({.world = static_cast<std::uint32_t>(nodes.size()), .nodes = nodes},
                                         toy({.plan = mirrored_plan(stage, slots, exchange)}));
          for (const Member& m : members) ended_alike(m, slots);
        }
  for (const int stage : {1, 2, 3})
    for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot}) {
      INFO("leaves in bf16, mirrored(zero(" << stage << "))");
      Plan plan = mirrored_plan(stage, 8, exchange);
      plan.leaves = DType::bf16;
      for (const Member& m : run_world({.world = 5, .nodes = {0, 0, 1, 1, 2}}, toy({.plan = plan}))) ended_alike(m, 8, DType::bf16);
    }
}

TEST_CASE("any worker that dies at any exchange leaves its part of the state on another node, and nothing decided is done again",
          "[job][mirrored]") {
  for (const int stage : {1, 2, 3})
    for (const Nodes& nodes : {Nodes{0, 1}, Nodes{0, 1, 2}, Nodes{0, 0, 1}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 1, 1}, Nodes{0, 0, 1, 1, 2}})
      for (std::uint32_t dead = 0; dead < nodes.size(); ++dead)
        for (std::uint64_t at = (stage == 3 ? 20 : 6) + dead; at < (stage == 1 ? 30u : 110u); at += stride(stage == 1 ? 5 : 31)) {
          const std::uint64_t rate = at % 3 == 0 ? before_slots : beside_slots;
          INFO("mirrored(zero(" << stage << ")), " << text_of(nodes) << ", rank " << dead << " at exchange " << at << ", state at "
                                << rate);
          ElasticWorld world{static_cast<std::uint32_t>(nodes.size()),
                             {{Fate::Kind::dies, dead, at, (at + dead) % 2 == 0}},
                             toy({.plan = mirrored_plan(stage)}),
                             nodes,
                             {},
                             {},
                             false,
                             rate};
          auto& results = world.wait();
          for (std::size_t i = 0; i < results.size(); ++i) {
            if (i == dead) continue;
            ended_alike(results[i]);
            if (i < nodes.size()) CHECK(results[i].steps.size() == 7);
          }
          CHECK(world.generations() == 2);
          CHECK_FALSE(said(world, "was lost"));
          CHECK_FALSE(said(world, "from nothing"));
        }
}

TEST_CASE("a node that dies leaves all of the state on the others, of whatever sizes they are", "[job][mirrored]") {
  Selection selection;
  for (const int stage : {1, 2, 3})
    for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{1, 0, 0, 0}, Nodes{0, 0, 0, 1}, Nodes{0, 0, 1, 1, 2}, Nodes{0, 1, 0, 1, 2, 2}})
      for (const std::uint32_t node : {0u, 1u}) {
        const auto first = static_cast<std::uint32_t>(std::ranges::find(nodes, node) - nodes.begin());
        for (std::uint64_t at = stage == 3 ? 20 : 7; at < (stage == 1 ? 30u : 110u); at += stage == 1 ? 7 : 31) {
          if (!selection.takes()) continue;
          const std::uint64_t rate = at % 3 == 0 ? before_slots : beside_slots;
          INFO("mirrored(zero(" << stage << ")), " << text_of(nodes) << ", node " << node << " at exchange " << at << ", state at "
                                << rate);
          ElasticWorld world{static_cast<std::uint32_t>(nodes.size()),
                             {{Fate::Kind::dies, first, at, at % 2 == 0, true}},
                             toy({.plan = mirrored_plan(stage)}),
                             nodes,
                             {},
                             {},
                             false,
                             rate};
          auto& results = world.wait();
          for (std::size_t i = 0; i < results.size(); ++i) {
            const bool was_there = i < nodes.size();
            CHECK(world.was_killed(i) == (was_there && nodes[i] == node));
            if (world.was_killed(i)) continue;
            ended_alike(results[i]);
            if (was_there) CHECK(results[i].steps.size() == 7);
          }
          CHECK(world.generations() == 2);
          CHECK_FALSE(said(world, "was lost"));
          CHECK_FALSE(said(world, "from nothing"));
        }
      }
}

TEST_CASE("one after the other can die, down to the last, and each time the shards are mirrored anew", "[job][mirrored]") {
  for (const std::uint64_t rate : {before_slots, beside_slots})
    for (const int stage : {1, 2, 3}) {
      INFO("mirrored(zero(" << stage << ")), state at " << rate);
      const std::uint64_t at = stage == 1 ? 16 : stage == 2 ? 40 : 60;
      ElasticWorld world{4,
                         {{Fate::Kind::dies, 3, at, false}, {Fate::Kind::dies, 0, at, false}, {Fate::Kind::dies, 1, at, false}},
                         toy({.plan = mirrored_plan(stage)}),
                         {0, 0, 1, 1},
                         {},
                         {},
                         false,
                         rate};
      std::size_t done = 0;
      for (const Member& m : world.wait()) {
        if (!m.outcome) continue;
        ended_alike(m);
        CHECK(m.steps.size() == 7);
        ++done;
      }
      CHECK(done == 1);
      CHECK(world.generations() == 4);
      CHECK_FALSE(said(world, "was lost"));
    }
}

TEST_CASE("a recut that some hear to be finished, and others do not, loses nothing", "[job][mirrored]") {
  for (const int stage : {1, 3})
    for (const Nodes& nodes : {Nodes{0, 1, 2, 3, 4}, Nodes{0, 0, 1, 1}})
      for (std::uint32_t reached = 0; reached + 1 < nodes.size(); ++reached)
        for (std::uint64_t at = 0; at < 16; at += stride(1)) {
          const std::uint64_t rate = reached % 2 == 0 ? beside_slots : before_slots;
          INFO("mirrored(zero(" << stage << ")), " << text_of(nodes) << ", exchange " << at << " of the second generation reaches member "
                                << reached << " alone, state at " << rate);
          const auto last = static_cast<std::uint32_t>(nodes.size()) - 1;
          ElasticWorld world{last + 1,
                             {{Fate::Kind::dies, last, stage == 1 ? 16u : 60u, false}, {Fate::Kind::splits, reached, at, false}},
                             toy({.plan = mirrored_plan(stage)}),
                             nodes,
                             {},
                             {},
                             false,
                             rate};
          auto& results = world.wait();
          for (std::uint32_t i = 0; i < last; ++i) {
            ended_alike(results[i]);
            CHECK(results[i].steps.size() == 7);
          }
          CHECK_FALSE(said(world, "was lost"));
        }
}

TEST_CASE("whoever dies once all have their new shards takes nothing with it, although nobody has heard that all have them",
          "[job][mirrored]") {
  // Rank 1 has the parts of rank 3. From the fifth exchange of the second generation on, or from the seventh where state goes beside slots, all three have their new shards.
  for (const std::uint64_t rate : {before_slots, beside_slots})
    for (std::uint64_t at = rate == before_slots ? 5 : 7; at < 16; ++at) {
      INFO("at exchange " << at << ", state at " << rate);
      ElasticWorld world{4,
                         {{Fate::Kind::dies, 3, 16, false}, {Fate::Kind::dies, 1, at, false}},
                         toy({.plan = mirrored_plan(1)}),
                         {0, 1, 2, 3},
                         {},
                         {},
                         false,
                         rate};
      auto& results = world.wait();
      for (const std::size_t survivor : {0u, 2u}) ended_alike(results[survivor]);
      CHECK_FALSE(said(world, "was lost"));
    }
}

TEST_CASE("a member that alone heard that a step is decided, and comes back late, sets nobody back", "[job][mirrored]") {
  std::size_t came_back_ahead = 0;
  for (const int stage : {1, 2, 3})
    for (const std::uint32_t alone : {0u, 1u, 2u, 3u})
      for (std::uint64_t at = stage == 3 ? 60 : 14; at < (stage == 3 ? 70u : 24u); at += stride(1)) {
        const std::uint64_t rate = alone % 2 == 0 ? beside_slots : before_slots;
        INFO("mirrored(zero(" << stage << ")), exchange " << at << " reaches member " << alone << " alone, state at " << rate);
        // The three others are in their generation when it comes back, and have decided no step in it.
        ElasticWorld world{4,
                           {{.kind = Fate::Kind::splits, .whom = alone, .at = at, .excluded = true}, {Fate::Kind::grows, 0, 9}},
                           toy({.plan = mirrored_plan(stage)}),
                           {0, 1, 2, 3},
                           {},
                           {},
                           false,
                           rate};
        auto& results = world.wait();
        for (std::uint32_t i = 0; i < 4; ++i) ended_alike(results[i]);
        CHECK(world.generations() == 3);
        CHECK_FALSE(said(world, "was lost"));
        CHECK_FALSE(said(world, "from nothing"));
        came_back_ahead += said(world, "1 step is repeated");
      }
  CHECK(came_back_ahead > 0);
}

TEST_CASE("both holders of a shard that die together take it with them: all go back, and say so", "[job][mirrored]") {
  std::uint64_t again = 0;
  for (const int stage : {1, 2, 3})
    for (const bool saves : {true, false}) {
      INFO("mirrored(zero(" << stage << ")), " << (saves ? "with" : "without") << " checkpoints");
      const TemporaryDirectory root;
      CheckpointOptions checkpoint;
      if (saves) checkpoint = {.directory = root.path(), .every = 2};
      const std::uint64_t after_a_save = stage == 1 ? 33 : stage == 2 ? 80 : 108;
      // Ranks 1 and 3 have the same parts; of the three that are left it is the third, and goes before it could give anything.
      ElasticWorld world{4,
                         {{Fate::Kind::dies, 1, after_a_save, false}, {Fate::Kind::dies, 2, 1, false}},
                         toy({.plan = mirrored_plan(stage), .checkpoint = checkpoint}),
                         {0, 0, 1, 1}};
      auto& results = world.wait();
      for (const std::size_t survivor : {0u, 2u}) ended_alike(results[survivor]);
      const std::string lost =
          "was lost with rank 1 (node node 0) and rank 3 (node node 1) of generation 1@00000000: all go back to the "
          "newest checkpoint, or to the beginning";
      CHECK(std::ranges::count_if(world.lines(), [&](const std::string& line) { return line.find(lost) != line.npos; }) == 1);
      std::size_t told = 0;
      for (const Restoration& from : world.restorations()) {
        if (from.notes.empty() || from.notes[0].find(lost) == std::string::npos) continue;
        ++told, again += from.steps_again;
        CHECK_FALSE(from.checkpoint.empty());
        CHECK(from.step % 2 == 0);
        CHECK(from.notes[0].starts_with(fmt::format("part of the state of step {} ", from.step + from.steps_again)));
      }
      CHECK(told == (saves ? 2 : 0));  // to each agent
    }
  CHECK(again > 0);
}

TEST_CASE("a job that shrank to one node says in each generation that both copies are there, and when they are apart again",
          "[job][mirrored]") {
  const auto count = [](const ElasticWorld& world, std::string_view what) {
    return std::ranges::count_if(world.lines(), [&](const std::string& line) { return line.find(what) != line.npos; });
  };
  constexpr std::string_view
      together = "both copies of each shard are on one node now (node 0): the loss of that node goes back to the last checkpoint",
      apart = "the copies of each shard are on different nodes again";
  for (const int stage : {1, 3}) {
    INFO("mirrored(zero(" << stage << "))");
    const std::uint64_t at = stage == 1 ? 16 : 60;
    // The member of node 1 dies, then one of node 0, in whose place another one comes, and at last one of node 1.
    ElasticWorld world{4,
                       {{Fate::Kind::dies, 3, at, false}, {Fate::Kind::dies, 1, at, false}, {Fate::Kind::grows, 0, at}},
                       toy({.plan = mirrored_plan(stage)}),
                       {0, 0, 0, 1, 1}};
    for (std::size_t i = 0; i < world.wait().size(); ++i)
      if (!world.was_killed(i)) ended_alike(world.wait()[i]);
    CHECK(world.generations() == 4);
    CHECK(count(world, together) == 2);
    CHECK(count(world, apart) == 1);
    ElasticWorld one_node{3, {{Fate::Kind::dies, 1, at, false}}, toy({.plan = mirrored_plan(stage)}), {0, 0, 0}};
    for (const std::size_t survivor : {0u, 2u}) ended_alike(one_node.wait()[survivor]);
    CHECK(count(one_node, "on one node now") == 0);  // they were never apart, and it was said at seal()
    ElasticWorld alone{2, {{Fate::Kind::dies, 0, at, false}}, toy({.plan = mirrored_plan(stage)}), {0, 1}};
    ended_alike(alone.wait()[1]);
    CHECK(count(alone, "the only copy of each shard is on one node now (node 1)") == 1);
  }
}

TEST_CASE("a checkpoint of mirrored state has each byte once, and goes on under any placement, as it does from any", "[job][mirrored]") {
  const auto bytes_in = [](const std::string& directory) {
    std::uint64_t sum = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator{directory})
      if (entry.is_regular_file()) sum += entry.file_size();
    return sum;
  };
  std::uint64_t plain = 0;
  for (const int stage : {0, 1, 2, 3})
    for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 1, 1, 1}, Nodes{0, 1, 2}}) {
      INFO("mirrored(zero(" << stage << ")), " << text_of(nodes));
      const TemporaryDirectory root;
      const CheckpointOptions checkpoint{.directory = root.path(), .every = 5, .keep = 2};
      for (const Member& m : run_world({.world = static_cast<std::uint32_t>(nodes.size()), .nodes = nodes},
                                       toy({.plan = mirrored_plan(stage), .checkpoint = checkpoint, .stop_after = 5})))
        REQUIRE_FALSE(m.failure.has_value());
      const std::uint64_t size = bytes_in(root.path());
      if (plain == 0) plain = size;
      CHECK(size < plain + 8192);  // the tables of the parts differ
      Plan after = toy_plan(3 - stage);
      if (stage % 2 == 0) after.placement = hybrid(after.placement);
      for (const Member& m : run_world({.world = 3, .generation = 2, .nodes = {0, 1, 1}}, toy({.plan = after, .checkpoint = checkpoint})))
        ended_alike(m);
      for (const Member& m : run_world({.world = 5, .generation = 3, .nodes = {0, 0, 1, 1, 2}},
                                       toy({.plan = mirrored_plan(stage), .checkpoint = checkpoint})))
        ended_alike(m);
    }
}

TEST_CASE("verify compares the two copies, and names the one that differs", "[job][mirrored][verify]") {
  for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, Nodes{0, 1, 2, 3, 4}, Nodes{0, 0, 0, 1}})
    for (std::uint32_t spoilt = 0; spoilt <= nodes.size(); ++spoilt) {  // the last one: nobody
      INFO(text_of(nodes) << ", rank " << spoilt << " spoilt");
      std::mutex mutex;
      std::vector<Verification> found;
      const auto members = run_world({.world = static_cast<std::uint32_t>(nodes.size()), .nodes = nodes}, [&](Job& job, Member& me) {
        Plan plan = mirrored_plan(3);
        plan.steps = 1;
        job.configure(plan);
        Unit unit = job.unit("u");
        const auto w = unit.tensor<float>("w", {19000});
        job.seal();
        if (!job.restore()) {
          const auto scope = unit.use();
          std::ranges::fill(w.span(), 0.5f);
        }
        while (auto step = job.next_step()) {
          for (Slot& slot : step->slots()) slot.report(1, 1);
          step->apply(AdamW{}, {.lr = 0.1f});
        }
        if (JobAccess::rank(job) == spoilt) {
          float& x = JobAccess::moment(job, 1)[7];
          x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ 1u);
        }
        Verification v = verify(job);
        me.outcome = job.outcome();
        const std::lock_guard lock{mutex};
        found.push_back(std::move(v));
      });
      for (const Member& m : members) REQUIRE(m.outcome.has_value());
      for (const Verification& v : found) {
        CHECK(v.decided);
        CHECK(v.compared == 3);
        REQUIRE(v.difference.has_value() == (spoilt < nodes.size()));
        if (!v.difference) continue;
        CHECK(v.difference->kind == "exp_avg_sq");
        CHECK_FALSE(v.difference->outvoted);  // of two
        CHECK(v.difference->what.find("the copy of rank ") != std::string::npos);
      }
    }
}

TEST_CASE("what mirrored placements take and send is worked out before anything is allocated, and said in words",
          "[job][mirrored][memory]") {
  const std::vector<UnitSpec> units{{"a", {{"w", DType::f32, {8 * granule}, {}}}}};
  const Layout layout = lay_out(units);
  constexpr std::uint64_t g = granule * sizeof(float);
  const auto of = [&](const Placement& placement, std::uint32_t world, std::uint32_t per_node) {
    return bytes_by_rank(layout, placement, Optimizer::adamw, 8, world, per_node);
  };
  // Four ranks: half of the state on each. A quarter is added up here, and the sum of the shard kept beside it.
  for (const RankBytes& told : of(mirrored(zero(3)), 4, 2))
    CHECK(told ==
          RankBytes{.parameters = 4 * g, .gradients = (3 * 2 + 4) * g, .optimizer = 8 * g, .exchange = 0, .in_use = (8 + 3 * 2 + 4) * g});
  CHECK(of(mirrored(zero(2)), 1, 1) == of(zero(2), 1, 1));
  for (const RankBytes& told : of(mirrored(zero(1)), 2, 1)) CHECK(told.optimizer == of(zero(0), 2, 1)[0].optimizer);
  for (const RankBytes& told : of(mirrored(zero(1)), 8, 4)) CHECK(told.optimizer == 2 * of(zero(1), 8, 4)[0].optimizer);

  Plan plan = mirrored_plan(1);
  const auto line = [&](const Nodes& nodes) { return mirroring_line(plan, layout, shard_map(Sharding::mirrored, nodes), nodes).value(); };
  CHECK(line({0}).find("holds the only copy; once it is lost, the job goes back to a checkpoint") != std::string::npos);
  CHECK(line({0, 1}).find("two workers hold everything each, as replicated state") != std::string::npos);
  CHECK(line({0, 0, 0, 0}).find("no decided step is lost with one worker; all are on one node, which has both copies") !=
        std::string::npos);
  INFO(line({0, 0, 1, 1}));
  CHECK(line({0, 0, 1, 1}).find("no decided step is lost with one worker or one node. Memory per rank: ") != std::string::npos);
  plan.placement = hybrid(zero(1));
  CHECK_FALSE(mirroring_line(plan, layout, shard_map(Sharding::sharded_in_node, Nodes{0, 0}), Nodes{0, 0}).has_value());
  const std::string table = memory_table(toy_plan(0), units, 3, 0);
  for (const int stage : {1, 2, 3}) CHECK(table.find(fmt::format("\nmirrored(zero({})) ", stage)) != std::string::npos);
  CHECK(memory_table(toy_plan(0), units, 1, 0).find("mirrored") == std::string::npos);
}

TEST_CASE("the job sends what the table says", "[job][mirrored][memory]") {
  for (const Nodes& nodes : {Nodes{0, 1}, Nodes{0, 1, 2}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 1, 1}, Nodes{0, 0, 1, 1, 2}})
    for (const Placement& placement :
         {zero(0, Exchange::per_step), zero(1, Exchange::per_step), zero(2, Exchange::per_slot), zero(3, Exchange::per_slot),
          hybrid(zero(2, Exchange::per_slot)), mirrored(zero(1, Exchange::per_step)), mirrored(zero(1, Exchange::per_slot)),
          mirrored(zero(2, Exchange::per_slot)), mirrored(zero(3, Exchange::per_step)), mirrored(zero(3, Exchange::per_slot))}) {
      INFO(*name_of(placement) << ", " << text_of(nodes));
      constexpr std::uint64_t slots = 6;
      const Layout layout = lay_out({{"u", {{"w", DType::f32, {64 * granule}, {}}}}});
      std::uint64_t told = 0;
      const bool trains = placement.parameters == Sharding::replicated;  // else each slot uses the weights, as often as the program likes
      for (RankSends s : sends_by_rank(layout, placement, shard_map(placement.optimizer, nodes), slots)) {
        if (!trains) s.weights = 0;
        told += s.all();
      }
      const std::uint64_t sent = bytes_sent(placement, nodes, slots, trains),
                          words = 4'000 + 1'000 * nodes.size() * (nodes.size() - 1);  // votes, needs
      CHECK(sent >= told);
      CHECK(sent < told + words);
    }
}

TEST_CASE("any history of workers and nodes ends with the same bits, mirrored", "[job][mirrored][elastic]") {
  for_all_seeds(60, [](Rng& rng) { any_history(rng, mirrored); });
}

}  // namespace elrun::test
