// In-memory checkpoints: what a lost worker takes with it of sharded state comes from the memory of the others, and the bits are those of a run that nothing happened to.

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "lib/job/declare/memory_report.hpp"
#include "lib/job/declare/memory_table.hpp"
#include "lib/job/save/memory_checkpoints.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/job_parts.hpp"
#include "tests/unit/placed_world.hpp"

namespace elrun::test {
namespace {

ToyOptions in_memory(int stage, std::uint64_t every, Exchange exchange = Exchange::automatic) {
  return {.plan = toy_plan(stage, 8, exchange), .checkpoint = {.in_memory_every = every}};
}

/// After the first in-memory checkpoint, and before the last step.
std::uint64_t late_exchange(int stage) { return stage == 1 ? 24 : stage == 2 ? 60 : 90; }

}  // namespace

TEST_CASE("an undisturbed job with in-memory checkpoints ends with the bits of one without", "[job][in_memory]") {
  Selection selection;
  for (const int stage : {1, 2, 3})
    for (const std::uint64_t every : {1u, 2u, 5u})
      for (const Nodes& nodes : {Nodes{0}, Nodes{0, 0}, Nodes{0, 1, 1}, Nodes{0, 0, 1, 1, 2}}) {
        if (!selection.takes()) continue;
        INFO("zero(" << stage << "), every " << every << ", " << text_of(nodes));
        for (const Member& m : run_world({.world = static_cast<std::uint32_t>(nodes.size()), .nodes = nodes}, toy(in_memory(stage, every))))
          ended_alike(m);
      }
}

TEST_CASE("a worker that dies at any exchange costs at most the steps since the last in-memory checkpoint, and no storage",
          "[job][in_memory]") {
  Selection selection;
  for (const int stage : {1, 2, 3})
    for (const std::uint64_t every : {1u, 3u})
      for (const Nodes& nodes : {Nodes{0, 0}, Nodes{0, 1, 1}, Nodes{0, 0, 1, 1}, Nodes{0, 1, 2, 2, 2}})
        for (std::uint32_t dead = 0; dead < nodes.size(); ++dead)
          for (std::uint64_t at = dead; at < (stage == 1 ? 50u : 150u); at += stride(stage == 1 ? 5 : 37)) {
            if (!selection.takes()) continue;
            INFO("zero(" << stage << "), every " << every << ", " << text_of(nodes) << ", rank " << dead << " at exchange " << at);
            ElasticWorld world{static_cast<std::uint32_t>(nodes.size()),
                               {{Fate::Kind::dies, dead, at, (at + dead) % 2 == 0}},
                               toy(in_memory(stage, every)),
                               nodes};
            auto& results = world.wait();
            const bool from_memory = said(world, "all go back to the in-memory checkpoint"), from_nothing = said(world, "from nothing");
            std::size_t most = 0;
            for (std::size_t i = 0; i < results.size(); ++i) {
              if (world.was_killed(i)) continue;
              ended_alike(results[i]);
              most = std::max(most, results[i].steps.size());
            }
            CHECK_FALSE((from_memory && from_nothing));
            // A step that is in flight is handed out again, too.
            if (from_memory) CHECK(most <= 7 + every + 1);
            // Seven steps take at least so many exchanges more than those before the first checkpoint.
            if (from_nothing) CHECK(at < (stage == 1 ? 14u : 60u));
          }
}

TEST_CASE("the in-memory checkpoint of two nodes outlives either of them", "[job][in_memory]") {
  for (const int stage : {1, 3})
    for (const std::uint32_t first : {0u, 2u}) {
      INFO("zero(" << stage << "), the node of rank " << first);
      const std::uint64_t at = late_exchange(stage);
      ElasticWorld world{4, {{Fate::Kind::dies, first, at, true, true}}, toy(in_memory(stage, 2)), {0, 0, 1, 1}};
      auto& results = world.wait();
      for (std::size_t i = 0; i < results.size(); ++i)
        if (!world.was_killed(i)) ended_alike(results[i]);
      CHECK(said(world, "all go back to the in-memory checkpoint"));
      CHECK_FALSE(said(world, "from nothing"));
      REQUIRE_FALSE(world.restorations().empty());
      for (const Restoration& told : world.restorations()) {
        CHECK(told.checkpoint == in_memory_checkpoint);
        CHECK(told.step % 2 == 0);
        CHECK(told.steps_again <= 2);
        CHECK(told.notes.size() == 1);
      }
    }
}

TEST_CASE("an in-memory checkpoint is gone on from where coordinator and storage were lost with a node", "[job][in_memory]") {
  const TemporaryDirectory root;
  ToyOptions options = in_memory(1, 2);
  options.checkpoint.directory = root.path(), options.checkpoint.every = 100, options.checkpoint.final_wait = 0s;
  const bool storage_goes = GENERATE(true, false);
  CAPTURE(storage_goes);
  Fate fate{Fate::Kind::dies, 0, late_exchange(1), true, true};
  fate.coordinator_changes = true, fate.storage_goes = storage_goes;
  ElasticWorld world{4, {fate}, toy(options), {0, 0, 1, 1}};
  auto& results = world.wait();
  for (std::size_t i = 0; i < results.size(); ++i)
    if (!world.was_killed(i)) ended_alike(results[i]);
  CHECK(said(world, "all go back to the in-memory checkpoint"));
  CHECK(said(world, "the workers go on with their state as the newest one") == storage_goes);
  for (const Restoration& told : world.restorations())
    CHECK((told.checkpoint.empty() || told.checkpoint == in_memory_checkpoint));  // at the job's begin there is none
}

TEST_CASE("a second worker that dies while the others get the in-memory checkpoint takes nothing of it", "[job][in_memory]") {
  Selection selection;
  for (const int stage : {1, 2, 3})
    for (std::uint64_t second = 0; second < 14; ++second) {
      if (!selection.takes()) continue;
      INFO("zero(" << stage << "), the second one at exchange " << second << " of its generation");
      const std::uint64_t at = late_exchange(stage);
      // Ranks 0 and 2 of four hold each other's parts, and so do 1 and 3: the second one is not the first one's holder.
      ElasticWorld world{4, {{Fate::Kind::dies, 1, at, true}, {Fate::Kind::dies, 0, second, true}}, toy(in_memory(stage, 2)), {0, 1, 2, 3}};
      auto& results = world.wait();
      for (std::size_t i = 0; i < results.size(); ++i)
        if (!world.was_killed(i)) ended_alike(results[i]);
      CHECK(said(world, "all go back to the in-memory checkpoint"));
      CHECK_FALSE(said(world, "from nothing"));
    }
}

TEST_CASE("after a loss slots run before moments and the in-memory checkpoint of the new world have come", "[job][in_memory]") {
  std::mutex mutex;
  std::condition_variable changed;
  bool computes = false, moments_come = false, is_on_its_way = false, came_too_early = false;
  ToyOptions options = in_memory(1, 1);
  options.plan.overlap = GENERATE(false, true);
  CAPTURE(options.plan.overlap);
  options.in_slot = [&](Job& job, std::uint64_t, Slot&) {
    const std::lock_guard lock{mutex};
    if (JobAccess::world_size(job) == 3) computes = true, changed.notify_all();
  };
  const auto hold_back = [&](bool& what) {
    std::unique_lock lock{mutex};
    what = true;
    came_too_early |= !changed.wait_for(lock, 60s, [&] { return computes; });
  };
  ElasticWorld world{4,
                     {{Fate::Kind::dies, 1, late_exchange(1), false}},
                     toy(options),
                     {0, 1, 2, 3},
                     {},
                     {},
                     false,
                     before_slots,
                     [&](bool) { hold_back(moments_come); },
                     [&](std::uint32_t size) {
                       if (size == 3) hold_back(is_on_its_way);
                     }};
  auto& results = world.wait();
  for (std::size_t i = 0; i < results.size(); ++i)
    if (!world.was_killed(i)) ended_alike(results[i]);
  CHECK(said(world, "all go back to the in-memory checkpoint"));
  CHECK(moments_come);
  CHECK(is_on_its_way);
  CHECK_FALSE(came_too_early);
}

TEST_CASE("a program that is left in the first step after a return to an in-memory checkpoint keeps its parts of that",
          "[job][in_memory]") {
  std::size_t ran_again = 0;
  for (std::uint64_t second = 0; second < 20; ++second) {
    INFO("the generation ends at exchange " << second);
    ToyOptions options = in_memory(1, 1);
    options.throws = true;
    std::atomic<int> waits{0};
    options.in_slot = [&](Job& job, std::uint64_t, Slot& slot) {  // the generation ends meanwhile
      if (JobAccess::world_size(job) != 3 || waits++ >= 3) return;
      for (int i = 0; i < 200 && !slot.revoked(); ++i) std::this_thread::sleep_for(1ms);
    };
    ElasticWorld world{4, {{Fate::Kind::dies, 1, late_exchange(1), false}, {Fate::Kind::breaks, 0, second}}, toy(options), {0, 1, 2, 3}};
    auto& results = world.wait();
    for (std::size_t i = 0; i < results.size(); ++i)
      if (!world.was_killed(i)) ended_alike(results[i]);
    CHECK(said(world, "all go back to the in-memory checkpoint"));
    CHECK_FALSE(said(world, "from nothing"));
    ran_again += said(world, "an exception came out of a slot") ? 1 : 0;
  }
  CHECK(ran_again > 0);
}

TEST_CASE("where all programs are left while moments travel, a checkpoint on storage that is older than the one in memory is not asked for",
          "[job][in_memory]") {
  const bool storage_goes = GENERATE(false, true);
  CAPTURE(storage_goes);
  std::mutex mutex;
  std::condition_variable changed;
  int compute = 0;
  const TemporaryDirectory root;
  ToyOptions options = in_memory(1, 1);
  options.checkpoint.directory = root.path(), options.checkpoint.every = 4, options.checkpoint.final_wait = 0s;
  options.throws = true;
  options.in_slot = [&](Job& job, std::uint64_t, Slot& slot) {
    if (JobAccess::world_size(job) != 3) return;
    {
      const std::lock_guard lock{mutex};
      if (compute++ >= 3) return;
      changed.notify_all();
    }
    while (!slot.revoked()) std::this_thread::sleep_for(1ms);
  };
  Fate moments_are_lost{Fate::Kind::breaks, 0, 9};
  moments_are_lost.storage_goes = storage_goes;
  ElasticWorld world{
      4, {{Fate::Kind::dies, 1, 40, false}, moments_are_lost}, toy(options), {0, 1, 2, 3}, {}, {}, false, before_slots, [&](bool) {
        std::unique_lock lock{mutex};
        changed.wait_for(lock, 60s, [&] { return compute >= 3; });
      }};
  auto& results = world.wait();
  for (std::size_t i = 0; i < results.size(); ++i)
    if (!world.was_killed(i)) ended_alike(results[i]);
  CHECK(std::ranges::count_if(world.lines(), [](const std::string& l) { return l.find("an exception came out of a slot") != l.npos; }) ==
        3);
  for (const Restoration& told : world.restorations())
    CHECK((told.checkpoint.empty() || (told.checkpoint == in_memory_checkpoint && told.step == 5)));
}

TEST_CASE("a newcomer that is another job ends alone, also where nobody has more than parts of an in-memory checkpoint",
          "[job][in_memory]") {
  for (std::uint64_t second = 0; second < 20; ++second) {
    INFO("the world grows at exchange " << second);
    std::mutex mutex;
    std::set<const Member*> born;
    const auto program = [&](Job& job, Member& me) {
      const bool is_new = [&] {
        const std::lock_guard lock{mutex};
        return born.insert(&me).second && JobAccess::host(job).session.place().restart_count > 0;
      }();
      toy(in_memory(1, is_new ? 2 : 1))(job, me);
    };
    ElasticWorld world{4, {{Fate::Kind::dies, 1, late_exchange(1), false}, {Fate::Kind::grows, 0, second}}, program, {0, 1, 2, 3}};
    auto& results = world.wait();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (world.was_killed(i)) continue;
      if (i < 4) ended_alike(results[i]);
      else if (results[i].failure) CHECK(results[i].failure->code == Code::mismatch);
    }
    CHECK_FALSE(said(world, "from nothing"));
  }
}

TEST_CASE("the first in-memory checkpoint of a world is waited for where a loss would cost more than the steps between two",
          "[job][in_memory]") {
  MemoryCheckpoints checkpoints;
  checkpoints.configure(4);
  CHECK_FALSE(checkpoints.may_come_beside(9, std::nullopt, true));
  for (const std::uint64_t older : {1u, 4u, 5u, 9u})
    for (const bool overlap : {true, false})
      CHECK(checkpoints.may_come_beside(9, CompleteCheckpoint{.step = older, .taken_in = {}, .held = {}}, overlap) == (older >= 5));
}

TEST_CASE("an in-memory checkpoint lies where one before it lay, also after a loss", "[job][in_memory]") {
  constexpr std::uint32_t size = 2;
  const Layout layout = lay_out(two_units());
  constexpr std::uint64_t part = (5 + 8) * granule * 3;
  // As after the loss of one of three, and of one of two that share a node: twice as much, and a granule of each unit.
  const std::uint64_t after_a_loss = GENERATE_COPY(part * 3 / 2, part * 2 + 2 * granule * 3);
  CAPTURE(after_a_loss);
  struct Seen {
    std::uint64_t asked = 0, bytes = 0;
    std::vector<std::uint64_t> memory;
  };
  std::array<Seen, size> seen;
  in_world(size, [&](JobWorld& world, std::uint32_t rank) {
    Seen& mine = seen[rank];
    SharedBuffers buffers = private_memory();
    ModelState state{layout, zero(1), Optimizer::adamw, buffers};
    const ShardMap shards = one_node(Sharding::sharded, size);
    state.plan_world(shards, rank, Space::gradients);
    state.allocate(shards.cuts[rank]);
    MemoryCheckpoints checkpoints;
    checkpoints.configure(1);
    std::uint64_t room = 0;
    const auto take = [&](std::uint64_t step) {
      checkpoints.take(world, state, shards, Nodes(size), {.step = step, .room = [&] { return ++mine.asked, room; }});
      mine.memory.push_back(checkpoints.memory_bytes());
    };
    take(1);
    mine.bytes = checkpoints.bytes();
    room = after_a_loss;
    take(2);
    checkpoints.all_have_theirs();
    take(3);
    checkpoints.keep(CompleteCheckpoint{.step = 2, .taken_in = world.membership().generation, .held = {}});  // the generation ended
    checkpoints.begin_generation();
    take(2);
    checkpoints.keep(std::nullopt);
    take(2);
  });
  for (const Seen& mine : seen) {
    CHECK(mine.asked == 2);
    const std::uint64_t one = mine.bytes, larger = after_a_loss * sizeof(float), both = one + larger;
    CHECK(one == part * sizeof(float));
    CHECK(mine.memory == std::vector<std::uint64_t>{one, both, both, both, larger});
  }
}

#ifndef ELRUN_TEST_SANITIZED  // whose allocator ends the process
TEST_CASE("an in-memory checkpoint has memory of its own size where there is none for a larger one", "[job][in_memory]") {
  constexpr std::uint32_t size = 2;
  const Layout layout = lay_out(two_units());
  std::array<std::vector<std::uint64_t>, size> seen;
  in_world(size, [&](JobWorld& world, std::uint32_t rank) {
    SharedBuffers buffers = private_memory();
    ModelState state{layout, zero(1), Optimizer::adamw, buffers};
    const ShardMap shards = one_node(Sharding::sharded, size);
    state.plan_world(shards, rank, Space::gradients);
    state.allocate(shards.cuts[rank]);
    MemoryCheckpoints checkpoints;
    checkpoints.configure(1);
    checkpoints.take(world, state, shards, Nodes(size), {.step = 1, .room = [] { return std::uint64_t{1} << 50; }});
    seen[rank] = {checkpoints.bytes(), checkpoints.memory_bytes()};
  });
  constexpr std::uint64_t all = (5 + 8) * granule * 3 * sizeof(float);
  for (const auto& mine : seen) CHECK(mine == std::vector{all, all});
}
#endif

TEST_CASE("a save makes an in-memory checkpoint first, so that a loss after it goes back to no storage and not behind it",
          "[job][in_memory]") {
  std::size_t from_memory = 0;
  for (std::uint64_t at = 30; at < 90; at += stride(6)) {
    INFO("rank 1 at exchange " << at);
    const TemporaryDirectory root;
    ToyOptions options = in_memory(1, 100);  // the first step of each world, and what saves ask for
    options.checkpoint.directory = root.path(), options.checkpoint.every = 2;
    ElasticWorld world{3, {{Fate::Kind::dies, 1, at, true}}, toy(options), {0, 1, 2}};
    auto& results = world.wait();
    for (std::size_t i = 0; i < results.size(); ++i)
      if (!world.was_killed(i) && !world.was_refused(i)) ended_alike(results[i]);
    for (const Restoration& told : world.restorations()) {
      if (told.checkpoint.empty()) continue;  // the start, from nothing
      CHECK(told.checkpoint == in_memory_checkpoint);
      ++from_memory;
    }
  }
  CHECK(from_memory > 0);
}

TEST_CASE("where both holders of a part are lost, all go back to the checkpoint on storage, or to the beginning", "[job][in_memory]") {
  for (const bool with_storage : {false, true}) {
    INFO((with_storage ? "with" : "without") << " a directory");
    const TemporaryDirectory root;
    ToyOptions options = in_memory(1, 1);
    if (with_storage) options.checkpoint.directory = root.path(), options.checkpoint.every = 3;
    // Of four ranks 0 and 2 hold the same parts. Rank 2 is rank 1 once rank 0 is gone, and dies before the others could make another checkpoint.
    ElasticWorld world{4, {{Fate::Kind::dies, 0, late_exchange(1), true}, {Fate::Kind::dies, 1, 2, true}}, toy(options), {0, 1, 2, 3}};
    auto& results = world.wait();
    for (std::size_t i = 0; i < results.size(); ++i)
      if (!world.was_killed(i)) ended_alike(results[i]);
    CHECK_FALSE(said(world, "the in-memory checkpoint of step"));
    CHECK(said(world, "all go back to the newest checkpoint, or to the beginning"));
    CHECK(said(world, "from nothing") == !with_storage);
  }
}

TEST_CASE("in-memory checkpoints take what plan_table and seal say", "[job][in_memory]") {
  std::vector<UnitSpec> units;
  for (const ToyTensor& t : toy_tensors()) {
    if (units.empty() || units.back().name != t.unit) units.push_back({t.unit, {}});
    units.back().tensors.push_back({t.name, DType::f32, {t.size}, t.options});
  }
  const Layout layout = lay_out(units);
  for (const int stage : {1, 3})
    for (const Nodes& nodes : {Nodes{0}, Nodes{0, 0}, Nodes{0, 1, 1}, Nodes{0, 0, 1, 1, 2}}) {
      INFO("zero(" << stage << "), " << text_of(nodes));
      const auto world = static_cast<std::uint32_t>(nodes.size());
      std::vector<std::uint64_t> most(world);
      ToyOptions options = in_memory(stage, 1);
      options.in_slot = [&](Job& job, std::uint64_t, Slot&) {
        std::uint64_t& mine = most[JobAccess::rank(job)];
        mine = std::max(mine, JobAccess::memory_checkpoint_bytes(job));
      };
      std::string table;
      for (const Member& m : run_world({.world = world, .nodes = nodes}, [&](Job&job, Member&me) {
             toy(options)(job, me);
             if (JobAccess::rank(job) == 0) table = job.plan_table(world, 0);
           }))
        ended_alike(m);
      const std::uint64_t said = memory_checkpoint_bytes(layout, Optimizer::adamw, nodes);
      CHECK(*std::ranges::max_element(most) == said);
      const std::uint64_t on_one_node = memory_checkpoint_bytes(layout, Optimizer::adamw, std::vector<std::uint32_t>(world));
      CHECK(table.ends_with("in-memory checkpoints, with zero(1) to zero(3) and hybrid: " + human_bytes(on_one_node) +
                            " more of each rank's host memory"));
    }
  const Plan plan = toy_plan(1);
  CHECK(memory_checkpoints_line(plan, layout, Nodes{0}, 5).find("none is made while there is one worker") != std::string::npos);
  CHECK(memory_checkpoints_line(plan, layout, Nodes{0, 0}, 5).find("every 5 steps: the loss of one worker (all are on one node") !=
        std::string::npos);
  CHECK(memory_checkpoints_line(plan, layout, Nodes{0, 1}, 1).find("every step: the loss of one worker or one node") != std::string::npos);
  const ShardMap shards = shard_map(Sharding::sharded, Nodes{0, 1});
  const std::uint64_t needs = bytes_by_rank(layout, choose_exchange(plan, layout, shards).placement, shards, plan.optimizer, 8, plan.reduce,
                                            plan.leaves, plan.overlap)[0]
                                  .all();
  CHECK_FALSE(exceeds_machine(plan, units, layout, shards, 0, needs + 1000, 1000).has_value());
  CHECK(exceeds_machine(plan, units, layout, shards, 0, needs + 999, 1000)->find("in-memory checkpoints 1000 B") != std::string::npos);
}

TEST_CASE("ranks that make in-memory checkpoints at other steps do not train together", "[job][in_memory]") {
  const auto members = run_world({.world = 2}, [&](Job& job, Member& me) { toy(in_memory(1, 1 + JobAccess::rank(job)))(job, me); });
  for (const Member& m : members) {
    REQUIRE(m.failure);
    CHECK(m.failure->code == Code::mismatch);
    CHECK(m.failure->what.find("in_memory_every: 2") != std::string::npos);
  }
}

TEST_CASE("any history with in-memory checkpoints ends with the same bits", "[job][in_memory]") {
  for_all_seeds(80, [](Rng& rng) {
    const Copies copies = rng.chance(0.3) ? hybrid : Copies{[](Placement placement) { return placement; }};
    any_history(rng, copies, 1 + rng.below(4));
  });
}

}  // namespace elrun::test
