// Sharded gradients and parameters: what is there when, what it costs in memory, and what ranks do for each other.

#include <sys/mman.h>
#include <sys/utsname.h>

#include <cstdio>
#include <numeric>

#include <elrun/verify.hpp>

#include "lib/job/gather/rounds.hpp"
#include "lib/job/gradients/leaf_stream.hpp"
#include "lib/job/state/paged_arena.hpp"
#include "tests/support/property.hpp"
#include "tests/unit/elastic_world.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

constexpr std::uint64_t page = granule * sizeof(float);

/// Pages of an arena that the kernel holds.
std::uint64_t resident(const PagedArena& arena) {
  std::vector<unsigned char> pages((arena.span().size_bytes() + 4095) / 4096);
  must(mincore(arena.data(), arena.span().size_bytes(), pages.data()) == 0, "mincore failed");
  return static_cast<std::uint64_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; }));
}

/// Six units of eight granules and one of a single one, used one after the other. `order` says in which order the
/// gradients of a slot are made.
struct Layers {
  static constexpr std::size_t count = 7;
  std::vector<Unit> units;
  std::vector<Tensor<float>> weights;

  explicit Layers(Job& job) {
    for (std::size_t u = 0; u < count; ++u) {
      units.push_back(job.unit(fmt::format("layer {}", u)));
      weights.push_back(units.back().tensor<float>("w", {size(u)}));
    }
  }
  static std::uint64_t size(std::size_t unit) { return unit == 6 ? 10 : 8 * granule - 3; }
  void initialise(const RandomStream& random) {
    for (std::size_t u = 0; u < count; ++u) {
      const auto scope = units[u].use();
      weights[u].set(*normals(random.operation(static_cast<std::uint32_t>(u)), size(u)));
    }
  }
  float sum() {
    float all = 0;
    for (std::size_t u = 0; u < count; ++u) {
      const auto scope = units[u].use();
      all = std::accumulate(weights[u].span().begin(), weights[u].span().end(), all);
    }
    return all;
  }
  void make_gradient(std::size_t u, const Slot& slot) {
    const auto scope = units[u].use_grad();
    add_gradient(weights[u], slot.rng().operation(static_cast<std::uint32_t>(u)));
  }
};

/// Runs a whole job on layers. `make_gradients(layers, slot, step)`.
Program layered(const Plan& plan, const std::function<void(Layers&, Slot&, std::uint64_t)>& make_gradients,
                const std::function<void(Job&, Layers&)>& between = {}) {
  return [=](Job& job, Member& me) {
    job.configure(plan);
    Layers layers{job};
    job.seal();
    if (!job.restore()) layers.initialise(job.rng("layers"));
    while (auto step = job.next_step()) {
      for (Slot& slot : step->slots()) {
        make_gradients(layers, slot, step->number());
        slot.report(1.0f, 1);
      }
      me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
      if (between) between(job, layers);
    }
    me.outcome = job.outcome();
  };
}

void in_order(Layers& layers, Slot& slot, std::uint64_t /*step*/) {
  for (std::size_t u = Layers::count; u-- > 0;) layers.make_gradient(u, slot);
}

std::uint64_t hash_of(const std::vector<Member>& members) {
  for (const Member& m : members) {
    INFO((m.failure ? message(*m.failure) : ""));
    REQUIRE(m.outcome.has_value());
    CHECK(m.outcome->state_hash == members[0].outcome->state_hash);
  }
  return members[0].outcome->state_hash;
}

std::uint64_t plain_job_hash() {
  static const std::uint64_t hash = hash_of(run_world({}, layered(toy_plan(0), in_order)));
  return hash;
}

/// Of a worker that is started while its job runs: its first generation, of two, is over before it asks for anything. The next one has it alone.
class LateSession final : public Session {
 public:
  /// `asks`: called when it asks for its place there.
  explicit LateSession(std::function<void()> asks) : asks_{std::move(asks)}, store_{clock_, {1, {}}}, of_rank_{store_.of(Rank{0})} {
    place_.membership = {{1, {}}, Rank{0}, WorldSize{2}};
    place_.elastic = true;
  }
  const Place& place() const override { return place_; }
  Store& store() override { return *of_rank_; }
  void on_generation_over(OnOver call) override {
    if (place_.membership.generation.number == 1) call({Code::generation_over, Remedy::rejoin, "it began before this worker came"});
  }
  void progress(const StepProgress&) override {}
  Result<void> finished(Deadline) override { return {}; }
  Result<void> next_generation(Deadline) override {
    asks_();
    place_.membership = {{2, {}}, Rank{0}, WorldSize{1}};
    return {};
  }

 private:
  const std::function<void()> asks_;
  const SteadyClock clock_;
  SharedStore store_;
  std::unique_ptr<Store> of_rank_;
  Place place_;
};

/// What a world of one says about a program with sharded parameters.
Failure failure_of(const std::function<void(Job&, Layers&)>& after_seal) {
  const auto members = run_world({}, [&](Job& job, Member&) {
    job.configure(toy_plan(3));
    Layers layers{job};
    job.seal();
    after_seal(job, layers);
  });
  REQUIRE(members[0].failure.has_value());
  return *members[0].failure;
}

}  // namespace

TEST_CASE("an arena of pages has the memory of what is held and no more, at addresses that stay", "[job]") {
  PagedArena arena{16 * granule};
  float* const at = arena.data();
  CHECK(arena.held_bytes() == 0);
  arena.hold(2 * granule, 7 * granule);
  std::ranges::fill(arena.span(2 * granule, 5 * granule), 1.0f);
  CHECK(arena.held_bytes() == 5 * page);
  CHECK(resident(arena) == 5);
  arena.hold(6 * granule, 8 * granule);
  CHECK(arena.data()[6 * granule] == 1.0f);
  CHECK(arena.data()[7 * granule] == 0.0f);
  arena.release(0, 6 * granule);
  CHECK(arena.held_bytes() == 2 * page);
  CHECK(resident(arena) <= 2);
  CHECK(arena.data()[6 * granule] == 1.0f);
  arena.hold(2 * granule, 3 * granule);
  CHECK(arena.data()[2 * granule] == 0.0f);
  CHECK(arena.held_bytes_max() == 6 * page);
  CHECK(arena.data() == at);
}

TEST_CASE("what an arena holds can be brought into memory before it is touched, and keeps its contents", "[job]") {
  PagedArena arena{8 * granule};
  arena.hold(granule, 3 * granule), arena.hold(5 * granule, 8 * granule);
  arena.data()[2 * granule] = 1.0f;
  CHECK(resident(arena) < 5);
  arena.make_resident();
  CHECK(resident(arena) == 5);
  CHECK(arena.data()[2 * granule] == 1.0f);
  CHECK(arena.data()[7 * granule] == 0.0f);
}

TEST_CASE("a worker that comes to a running job has memory for its parameters before it asks for its place", "[job][elastic]") {
  for (const int stage : {0, 3}) {
    INFO("zero(" << stage << ")");
    const PagedArena* arena = nullptr;
    std::uint64_t there = 0;
    LateSession session{[&] { there = resident(*arena); }};
    const SteadyClock clock;
    const Log log{"test", [](Level, std::string_view) {}};
    PosixFiles files;
    JobAccess::drive({.clock = clock, .files = files, .session = session, .log = log, .out = [](std::string_view) {}, .join = {}},
                     [&](Job& job) {
                       job.configure(toy_plan(stage));
                       const Layers layers{job};
                       job.seal();
                       arena = &JobAccess::parameters(job);
                       must(!job.restore(), "there is nobody to get a state from");
                     });
    CHECK(there > 0);
    CHECK(there * page == (stage == 0 ? 49 * page : 25 * page));
  }
}

TEST_CASE("an arena gives back pages that are locked in memory, too", "[job]") {
  PagedArena arena{8 * granule};
  arena.hold(0, 8 * granule);
  std::ranges::fill(arena.span(), 1.0f);
  if (mlock(arena.data(), arena.span().size_bytes()) != 0) {
    WARN("skipped: this process may not lock 32 kB of memory");
    return;
  }
  utsname system{};
  REQUIRE(uname(&system) == 0);
  unsigned major = 0, minor = 0;
  if (std::sscanf(system.release, "%u.%u", &major, &minor) != 2 || std::pair{major, minor} < std::pair{5u, 18u}) {
    WARN("skipped: locked pages are given back since Linux 5.18, this is " << system.release);
    return;
  }
  arena.release(2 * granule, 8 * granule);
  CHECK(arena.held_bytes() == 2 * page);
  arena.hold(2 * granule, 3 * granule);
  CHECK(arena.data()[2 * granule] == 0.0f);
  CHECK(arena.data()[granule] == 1.0f);
}

TEST_CASE("sharded parameters take the memory of a shard and of the units in use", "[job]") {
  for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot}) {
    const std::uint32_t world = 4;
    std::atomic<std::uint64_t> wrong{0};
    const auto members = run_world({.world = world}, [&](Job& job, Member& me) {
      const auto arena = [&job]() -> const PagedArena& { return JobAccess::parameters(job); };  // seal() makes it
      std::uint64_t shard = 0;
      const auto check = [&](std::uint64_t pages) { wrong += arena().held_bytes() != pages * page || resident(arena()) > pages; };
      const auto make = [&](Layers& layers, Slot& slot, std::uint64_t) {
        check(shard);
        const float* const address = [&] {
          const auto scope = layers.units[2].use();
          check(shard + 6);
          const auto other = layers.units[3].use();
          check(shard + 12);
          const auto again = layers.units[2].use();
          check(shard + 12);
          return layers.weights[2].data();
        }();
        check(shard);
        for (std::size_t u = Layers::count; u-- > 0;) layers.make_gradient(u, slot);
        const auto scope = layers.units[2].use();
        wrong += layers.weights[2].data() != address;
      };
      const auto between = [&](Job&, Layers&) { check(shard); };
      Plan plan = toy_plan(3, 8, exchange);
      plan.overlap = false;
      layered(
          plan,
          [&](Layers& layers, Slot& slot, std::uint64_t step) {
            if (shard == 0) shard = 12 + (arena().held_bytes() == 13 * page);  // a quarter of six units; the small one is one rank's
            make(layers, slot, step);
          },
          between)(job, me);
      wrong += arena().held_bytes_max() > (shard + 2 * 6) * page;
    });
    CHECK(wrong == 0);
    CHECK(hash_of(members) == plain_job_hash());
  }
}

TEST_CASE("sharded gradients take the memory of a shard's partial sums and of the units in use", "[job]") {
  const std::uint32_t world = 4;
  std::atomic<std::uint64_t> wrong{0};
  const auto members = run_world({.world = world}, [&](Job& job, Member& me) {
    Plan plan = toy_plan(2);
    plan.overlap = false;
    layered(plan, in_order)(job, me);
    const LeafStream& stream = JobAccess::leaf_stream(job);
    // Eight slots by four ranks: a sum of four and, beside it, at most two smaller ones.
    wrong += stream.partials() > 3 || stream.bytes() > 3 * 13 * page;
    wrong += stream.bytes_max() > stream.bytes() + 2 * 8 * page + 3 * 2 * page;  // one unit's leaf, handed off when the next begins
  });
  CHECK(wrong == 0);
  CHECK(hash_of(members) == plain_job_hash());
}

TEST_CASE("units may come in another order in every slot, or not at all, and the bits are the same", "[job]") {
  const auto shuffled = [](Layers& layers, Slot& slot, std::uint64_t step) {
    Rng rng{step * 100 + slot.index()};
    std::vector<std::size_t> order(Layers::count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
    for (const std::size_t u : order) {
      if (rng.chance(0.2)) continue;
      const auto weights = layers.units[(u + 1) % Layers::count].use();
      layers.make_gradient(u, slot);
    }
  };
  const std::uint64_t hash = hash_of(run_world({}, layered(toy_plan(0), shuffled)));
  CHECK(hash != plain_job_hash());
  Selection selection;
  for (const int stage : {0, 2, 3})
    for (const Exchange exchange : {Exchange::per_step, Exchange::per_slot})
      for (const std::uint32_t world : {1u, 3u, 4u, 10u}) {
        if (!selection.takes()) continue;
        INFO("zero(" << stage << ") on " << world << " ranks, gradients per " << (exchange == Exchange::per_slot ? "slot" : "step"));
        CHECK(hash_of(run_world({.world = world}, layered(toy_plan(stage, 8, exchange), shuffled))) == hash);
      }
}

TEST_CASE("between steps, in evaluations and after the end, sharded parameters are there for who uses them", "[job]") {
  const auto sums = [](int stage, std::uint32_t world) {
    std::vector<std::vector<float>> by_member(world);
    std::atomic<std::size_t> next{0};
    const auto members = run_world({.world = world}, [&](Job& job, Member& me) {
      std::vector<float>& mine = by_member[next++];
      Layers* all = nullptr;
      const auto look = [&](Job& inside, Layers& layers) {
        all = &layers;
        mine.push_back(layers.sum());
        if (inside.prints()) (void)layers.sum();  // the others serve it from their next call
        const Evaluation e = inside.evaluate(10, [&](Slot& slot) { slot.report(layers.sum() + static_cast<float>(slot.index()), 1); });
        must(e.decided, "the evaluation was not decided");
        mine.push_back(e.loss);
      };
      job.configure(toy_plan(stage));
      Layers layers{job};
      job.seal();
      must(!job.restore(), "there is a checkpoint to restore");
      layers.initialise(job.rng("layers"));
      while (auto step = job.next_step()) {
        for (Slot& slot : step->slots()) in_order(layers, slot, 0), slot.report(1.0f, 1);
        me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
        look(job, layers);
      }
      mine.push_back(all->sum());
      if (job.prints()) mine.push_back(all->sum()), mine.pop_back();  // the others have returned, and serve it
      me.outcome = job.outcome();
    });
    CHECK(hash_of(members) == plain_job_hash());
    for (const auto& mine : by_member) CHECK(mine == by_member[0]);
    return by_member[0];
  };
  const auto plain = sums(0, 1);
  CHECK(plain.size() == 2 * 7 + 1);
  for (const std::uint32_t world : {1u, 3u, 5u}) CHECK(sums(3, world) == plain);
}

TEST_CASE("what is touched outside of a scope is a clear error", "[job]") {
  const auto restored = [](const std::function<void(Job&, Layers&)>& rest) {
    return failure_of([&](Job& job, Layers& layers) {
             must(!job.restore(), "there is a checkpoint to restore");
             layers.initialise(job.rng("layers"));
             rest(job, layers);
           })
        .what;
  };
  const auto in_slot = [&](const std::function<void(Layers&, Step&, Slot&)>& rest) {
    return restored([&](Job& job, Layers& layers) {
      auto step = job.next_step();
      for (Slot& slot : step->slots()) rest(layers, *step, slot);
    });
  };
  const std::string weights = restored([](Job&, Layers& layers) { (void)layers.weights[1].span(); });
  CHECK(contains(weights, "'layer 1/w' is used where it has no memory"));
  CHECK(contains(weights, "unit.use()"));
  CHECK(contains(failure_of([](Job&, Layers& layers) { (void)layers.units[0].use(); }).what, "use comes after restore()"));
  CHECK(contains(in_slot([](Layers& layers, Step&, Slot&) {
                   const auto scope = layers.units[1].use();
                   (void)layers.weights[1].grad();
                 }),
                 "gradient of 'layer 1/w'"));
  CHECK(contains(in_slot([](Layers& layers, Step&, Slot& slot) {
                   layers.make_gradient(1, slot);
                   (void)layers.weights[1].grad();
                 }),
                 "unit.use_grad()"));
  CHECK(contains(restored([](Job& job, Layers& layers) {
                   auto step = job.next_step();
                   (void)layers.sum();
                   for (Slot& slot : step->slots()) in_order(layers, slot, 0), slot.report(1.0f, 1);
                   (void)layers.sum();
                 }),
                 "unit 'layer 0' is used after the last slot and before apply()"));
  CHECK(contains(in_slot([](Layers& layers, Step&, Slot& slot) { layers.make_gradient(1, slot), layers.make_gradient(1, slot); }),
                 "declare {.uses = 2}"));
  CHECK(contains(in_slot([](Layers& layers, Step& step, Slot& slot) {
                   const auto scope = layers.units[1].use_grad();
                   slot.report(1.0f, 1);
                   step.apply(AdamW{}, {});
                 }),
                 "ended inside a use_grad scope of unit 'layer 1'"));
  CHECK(contains(restored([](Job& job, Layers& layers) {
                   const auto scope = layers.units[2].use();
                   (void)job.next_step();
                 }),
                 "unit 'layer 2' is still in a use scope at next_step()"));
  CHECK(contains(restored([](Job& job, Layers& layers) {
                   const auto scope = layers.units[2].use();
                   (void)job.evaluate(3, [](Slot& slot) { slot.report(1.0f, 1); });
                 }),
                 "at evaluate()"));
}

TEST_CASE("ranks that are at different places of the program are told both", "[job]") {
  std::atomic<int> next{0};
  const auto members = run_world({.world = 3}, [&](Job& job, Member&) {
    const bool odd = next++ == 1;
    job.configure(toy_plan(3));
    Layers layers{job};
    job.seal();
    must(!job.restore(), "there is a checkpoint to restore");
    layers.initialise(job.rng("layers"));
    auto step = job.next_step();
    if (odd) (void)layers.sum();  // before its slots, where the others are in theirs
    for (Slot& slot : step->slots()) in_order(layers, slot, 0), slot.report(1.0f, 1);
    step->apply(AdamW{}, {});
    (void)job.next_step();
  });
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    INFO(message(*m.failure));
    CHECK(contains(m.failure->what, "between slots, with step 0 to come"));
    CHECK(contains(m.failure->what, "in slot 0 of its own in step 0"));
    CHECK(contains(m.failure->what, "between next_step() and the first slot all ranks use the same units"));
  }
}

TEST_CASE("initial values that differ between ranks are told before the first step, though each keeps its shard alone", "[job]") {
  std::atomic<int> next{0};
  const auto members = run_world({.world = 3}, [&](Job& job, Member&) {
    job.configure(toy_plan(3));
    Layers layers{job};
    job.seal();
    must(!job.restore(), "there is a checkpoint to restore");
    layers.initialise(job.rng("layers"));
    {
      const auto scope = layers.units[4].use();
      layers.weights[4].data()[5] = static_cast<float>(next++ == 1);
    }
    (void)job.next_step();
  });
  for (const Member& m : members) {
    REQUIRE(m.failure.has_value());
    CHECK(contains(m.failure->what, "job.rng(name)"));
    CHECK(exit_code(*m.failure) == 78);
  }
}

TEST_CASE("a leaf that comes twice, or from a rank without a slot, is refused", "[job]") {
  const Layout layout = lay_out({{"a", {{"w", DType::f32, {5000}, {}}}}});
  SharedBuffers buffers = private_memory();
  RoundsMemory rounds{host_memory()};
  LeafStream stream{layout, 2, shard_map(Sharding::sharded, std::vector<std::uint32_t>(3)), 0, DType::f32, buffers, rounds};
  stream.begin();
  CHECK(stream.busy() == 2);
  stream.open(0);
  (void)stream.arriving(0, 1);
  CHECK(stream.arrived(0, 1));
  CHECK_FALSE(stream.arrived(0, 1));
  CHECK_FALSE(stream.arrived(0, 2));
  CHECK_FALSE(stream.next());
  CHECK(stream.arrived(0, 0));
  CHECK(stream.next());
  CHECK(stream.complete());
  CHECK(stream.busy() == 0);
}

TEST_CASE("a leaf is handed off in slots alone", "[job][sharing]") {
  for (const auto what : {Phase::What::between, Phase::What::slot, Phase::What::evaluation}) {
    Need quiet{.phase = {what, 3, 0}}, gathers = quiet, hands_off = quiet;
    gathers.gather = 1, hands_off.hand_off = 1;
    CHECK(check(std::vector{quiet, gathers}, 2).ok());
    const auto result = check(std::vector{quiet, hands_off}, 2);
    CHECK(result.ok() == (what == Phase::What::slot));
    if (!result.ok()) CHECK(contains(result.failure().what, "rank 1 hands off a leaf of unit 1"));
    CHECK_FALSE(check(std::vector{quiet, gathers}, 1).ok());
  }
}

TEST_CASE("a step that was broken off leaves no memory with its leaves", "[job][sharing]") {
  const TensorSpec tensor{"w", DType::f32, {8 * granule}, {}};
  const Layout layout = lay_out({{"a", {tensor}}, {"b", {tensor}}});
  for (const DType leaves : {DType::f32, DType::bf16}) {
    SharedBuffers buffers = private_memory();
    RoundsMemory rounds{host_memory()};
    LeafStream stream{layout, 4, shard_map(Sharding::sharded, std::vector<std::uint32_t>(2)), 0, leaves, buffers, rounds};
    const std::uint64_t leaf = 8 * page, arriving = 4 * page * size_of(leaves) / 4;
    stream.begin();
    stream.open(0);
    (void)stream.arriving(0, 1);
    CHECK(stream.bytes_max() == stream.bytes() + leaf + arriving);
    stream.begin();
    stream.open(1);
    (void)stream.arriving(1, 1);
    CHECK(stream.bytes_max() == stream.bytes() + leaf + arriving);
  }
}

TEST_CASE("a use scope inside another of its unit brings nothing anew", "[job][sharing]") {
  std::uint64_t sent[2] = {};
  Plan plan = toy_plan(3);
  plan.overlap = false;  // with it the number of rounds is no constant
  for (const bool nested : {false, true}) {
    const auto members = run_world({.world = 3, .bytes_sent = &sent[nested]}, layered(plan, [&](Layers& layers, Slot& slot, std::uint64_t) {
                                     const auto outer = layers.units[2].use();
                                     if (nested) (void)layers.units[2].use();
                                     in_order(layers, slot, 0);
                                   }));
    CHECK(hash_of(members) == plain_job_hash());
  }
  CHECK(sent[0] == sent[1]);
}

TEST_CASE("a use between steps is safe whenever the world changes", "[job][sharing]") {
  for (const auto kind : {Fate::Kind::grows, Fate::Kind::breaks, Fate::Kind::dies})
    for (std::uint64_t at = 8; at < 200; at += stride(11)) {
      INFO("kind " << static_cast<int>(kind) << " at exchange " << at);
      ElasticWorld world{3, {{kind, 1, at, false}}, layered(toy_plan(3), in_order, [](Job&, Layers& layers) { (void)layers.sum(); })};
      for (const Member& m : world.wait()) {
        INFO((m.failure ? message(*m.failure) : ""));
        if (!m.outcome && !m.failure) continue;
        CHECK(m.outcome.has_value());
        if (m.outcome) CHECK(m.outcome->state_hash == plain_job_hash());
      }
      CHECK(world.generations() <= 2);
    }
}

TEST_CASE("a newcomer that verifies or evaluates before its first step holds nobody up", "[job][sharing]") {
  for (const int stage : {0, 3})
    for (const bool evaluates : {false, true}) {
      INFO("zero(" << stage << ") evaluates " << evaluates);
      ElasticWorld world{2, {{Fate::Kind::grows, 1, stage == 0 ? 30u : 130u, false}}, [&](Job& job, Member& me) {
                           job.configure(toy_plan(stage));
                           Layers layers{job};
                           job.seal();
                           if (!job.restore()) layers.initialise(job.rng("layers"));
                           if (evaluates) (void)job.evaluate(10, [&](Slot& slot) { slot.report(layers.sum(), 1); });
                           else (void)verify(job);
                           while (auto step = job.next_step()) {
                             for (Slot& slot : step->slots()) in_order(layers, slot, 0), slot.report(1.0f, 1);
                             me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
                           }
                           me.outcome = job.outcome();
                         }};
      for (const Member& m : world.wait()) {
        INFO((m.failure ? message(*m.failure) : ""));
        CHECK(m.outcome.has_value());
      }
      CHECK(world.generations() <= 2);
    }
}

TEST_CASE("a unit that begins as zeros may be read by some ranks before the first step", "[job][sharing]") {
  for (const int stage : {0, 3})
    for (const bool evaluates : {false, true}) {
      INFO("zero(" << stage << ") evaluates " << evaluates);
      const auto members = run_world({.world = 3}, [&](Job& job, Member& me) {
        job.configure(toy_plan(stage));
        Layers layers{job};
        job.seal();
        if (!job.restore())
          for (std::size_t u = 0; u + 1 < Layers::count; ++u) {  // the last stays zeros
            const auto scope = layers.units[u].use();
            for (float& x : layers.weights[u].span()) x = 0.5f;
          }
        if (evaluates) (void)job.evaluate(3, [&](Slot& slot) { slot.report(layers.sum(), 1); });
        else if (job.prints()) (void)layers.sum();
        while (auto step = job.next_step()) {
          for (Slot& slot : step->slots()) in_order(layers, slot, 0), slot.report(1.0f, 1);
          me.steps.push_back(step->apply(AdamW{}, {.lr = 0.01f}));
        }
        me.outcome = job.outcome();
      });
      for (const Member& m : members) {
        INFO((m.failure ? message(*m.failure) : ""));
        CHECK(m.outcome.has_value());
      }
    }
}

}  // namespace elrun::test
