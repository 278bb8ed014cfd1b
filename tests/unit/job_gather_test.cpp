// What ranks do for each other in user code, without a job: RoundExchange, one round; PhaseRounds, a phase; UnitScopes, the program's scopes.

#include "lib/job/gather/round_exchange.hpp"

#include "lib/job/gather/unit_scopes.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

constexpr std::uint32_t slots = 4;
constexpr Phase between{Phase::What::between, 0, 0};

/// One rank of a world with a sharded model: element i of unit u is i + 100000 u on its owner.
struct Gatherer {
  Gatherer(JobWorld& in, std::uint32_t of_rank, bool overlap = false, Memory& memory = host_memory())
      : world{in}, rank{of_rank}, buffers{private_memory(memory)}, rounds_memory{memory} {
    declared.configure(plan(), {});
    for (const UnitSpec& spec : two_units()) {
      UnitState& unit = declared.add_unit(spec.name, nullptr);
      for (const TensorSpec& t : spec.tensors) declared.add_tensor(unit, t.name, t.dtype, t.shape, t.options);
      units.push_back(&unit);
    }
    declared.seal();
    state = ModelState{lay_out(two_units()), plan().placement, Optimizer::sgd, buffers};
    reducer = GradientReducer{state.layout(), shards,     rank,    slots,        GradientReducer::Exchanges::per_slot,
                              Reduce::exact,  DType::f32, buffers, rounds_memory};
    state.plan_world(shards, rank, reducer.space());
    state.allocate(shards.cuts[rank]);
    rounds.plan_world(overlap);
    rounds.begin_anew(declared.unit_count());
    scopes.begin();
    reducer.begin_step();
    for (std::uint32_t u = 0; u < declared.unit_count(); ++u) {
      const LeafRange mine = shard(state.layout().units[u].trainable, shards.cuts[rank]);
      const std::span<float> weights = state.weights(u, shards.cuts[rank]);
      for (std::uint64_t i = 0; i < weights.size(); ++i) weights[i] = value(u, mine.begin + i);
    }
  }
  [[nodiscard]] static Plan plan() {
    Plan p;
    p.global_batch = slots, p.micro_batch = 1, p.samples = 50, p.steps = 7;
    p.placement = zero(3), p.optimizer = Optimizer::sgd;
    return p;
  }
  [[nodiscard]] static float value(std::uint32_t unit, std::uint64_t i) { return static_cast<float>(i + 100000 * unit); }
  /// All weights of a unit are there, and right.
  [[nodiscard]] bool has(std::uint32_t unit) const {
    const float* const at = state.unit(unit).data();
    for (std::uint64_t i = 0; i < state.layout().units[unit].trainable; ++i)
      if (at[i] != value(unit, i)) return false;
    return true;
  }
  [[nodiscard]] Phase slot(std::uint64_t index) const { return {Phase::What::slot, 0, index}; }
  /// A program's scope.
  [[nodiscard]] bool open(std::uint32_t unit, const Phase& phase) {
    const bool came = scopes.fetch(unit, phase, true);
    scopes.open(unit, phase, 0);
    return came;
  }

  JobWorld& world;
  std::uint32_t rank;
  SharedBuffers buffers;
  RoundsMemory rounds_memory;
  Declarations declared;
  std::vector<UnitState*> units;
  ShardMap shards = one_node(Sharding::sharded, world.size());
  ModelState state;
  GradientReducer reducer;
  InitialValues initial{2};
  RoundMarks marks{.weights = std::vector<RoundsMemory::Mark>(2),
                   .leaves = std::vector<RoundsMemory::Mark>(2)};  // for rounds without phases
  PhaseRounds rounds{world, state, reducer, shards, rounds_memory};
  UnitScopes scopes{declared, state, reducer, rounds};
};

}  // namespace

// ---- RoundExchange

TEST_CASE("a round brings each rank the unit that it wants, and serves ranks that want nothing", "[round_exchange]") {
  std::atomic<int> right{0};
  in_world(3, [&](JobWorld& world, std::uint32_t rank) {
    Gatherer me{world, rank};
    if (rank < 2) me.state.hold_unit(rank);
    RoundExchange round{world.size(), rank};
    Need need{.phase = between};
    if (rank < 2) need.gather = rank;  // another one on each; rank 2 gives
    const auto heard =
        round.run(world, need, {.state = me.state, .stream = nullptr, .shards = me.shards, .memory = me.rounds_memory, .marks = me.marks});
    right += heard.has_value() && heard->me == rank && heard->by_rank[1].gather == 1 && (rank == 2 || me.has(rank));
  });
  CHECK(right == 3);
}

TEST_CASE("ranks at different phases end the world, and are named", "[round_exchange]") {
  std::vector<std::string> why(2);
  in_world(2, [&](JobWorld& world, std::uint32_t rank) {
    Gatherer me{world, rank};
    RoundExchange round{world.size(), rank};
    const Need need{.phase = {Phase::What::between, rank, 0}};
    must(!round.run(world, need, {.state = me.state, .stream = nullptr, .shards = me.shards, .memory = me.rounds_memory, .marks = me.marks})
              .has_value(),
         "it is refused");
    why[rank] = world.why_over().what;
  });
  CHECK_THAT(why[0], Catch::Contains("rank 1") || Catch::Contains("rank 0"));
  CHECK_FALSE(why[1].empty());
}

TEST_CASE("a leaf that nobody expects ends the world", "[round_exchange]") {
  std::vector<std::string> why(2);
  in_world(2, [&](JobWorld& world, std::uint32_t rank) {
    Gatherer me{world, rank};
    RoundExchange round{world.size(), rank};
    Need need{.phase = me.slot(0)};
    if (rank == 1) need.hand_off = 0;
    (void)round.run(world, need,
                    {.state = me.state,
                     .stream = nullptr,
                     .shards = me.shards,
                     .memory = me.rounds_memory,
                     .marks = me.marks});  // gradients are exchanged once per step
    why[rank] = world.why_over().what;
  });
  for (const std::string& w : why) CHECK_THAT(w, Catch::Contains("rank 1 hands off a leaf of unit 0, which nobody expects of it"));
}

TEST_CASE("a round that ends a slot without all leaves ends the world", "[round_exchange]") {
  std::atomic<int> ended{0};
  in_world(2, [&](JobWorld& world, std::uint32_t rank) {
    Gatherer me{world, rank};
    RoundExchange round{world.size(), rank};
    const Need need{.phase = me.slot(0), .last = 1};
    const auto heard =
        round.run(world, need,
                  {.state = me.state, .stream = &me.reducer.stream(), .shards = me.shards, .memory = me.rounds_memory, .marks = me.marks});
    ended += !heard.has_value() && world.why_over().what.find("without handing off all units") != std::string::npos;
  });
  CHECK(ended == 2);
}

// ---- PhaseRounds and UnitScopes

TEST_CASE("a scope has all weights of its unit, in any order of units, and a rank without scopes serves", "[unit_scopes]") {
  for (Memory* memory : both_memories()) {
    std::atomic<int> right{0};
    in_world(3, [&](JobWorld& world, std::uint32_t rank) {
      Gatherer me{world, rank, false, *memory};
      const std::uint64_t held = me.state.parameter_bytes();
      if (rank < 2)
        for (const std::uint32_t unit : {rank, 1 - rank}) {
          must(me.scopes.fetches(unit), "it is sharded");
          must(me.open(unit, between) && me.has(unit), "the weights are there");
          must(me.units[unit]->tensors[0].data != nullptr, "the view has an address");
          me.scopes.close(unit, false, me.initial);
          must(me.units[unit]->tensors[0].data == nullptr, "the view has none");
          must(me.state.parameter_bytes() == held, "only the shard stays");
        }
      right += me.scopes.end_phase(between);
    });
    CAPTURE(memory == &host_memory());
    CHECK(right == 3);
  }
}

TEST_CASE("a scope around another one of its unit gathers once, and its weights stay until the last one ends", "[unit_scopes]") {
  for (Memory* memory : both_memories()) {
    std::atomic<int> right{0};
    in_world(2, [&](JobWorld& world, std::uint32_t rank) {
      Gatherer me{world, rank, false, *memory};
      must(me.open(0, between), "the first");
      must(!me.scopes.fetches(0), "there already");
      must(me.open(0, between), "the second");
      me.scopes.close(0, false, me.initial);
      try {
        me.scopes.require_all_closed("apply()");
      } catch (const Error& e) {
        right += e.failure().what == "unit 'a' is still in a use scope at apply(): end the scope before";
      }
      right += me.has(0);
      me.scopes.close(0, false, me.initial);
      me.scopes.require_all_closed("apply()");
      right += me.scopes.end_phase(between);
    });
    CAPTURE(memory == &host_memory());
    CHECK(right == 2 * 3);
  }
}

TEST_CASE("what the last scope of a unit left before the first step is an initial value", "[unit_scopes]") {
  for (Memory* memory : both_memories()) {
    std::atomic<int> compared{0};
    in_world(2, [&](JobWorld& world, std::uint32_t rank) {
      Gatherer me{world, rank, false, *memory};
      me.initial.allow(true);
      must(me.open(0, between), "the weights");
      me.state.unit(0)[0] = static_cast<float>(rank);  // ranks write different values
      me.scopes.close(0, false, me.initial);
      must(me.scopes.end_phase(between), "the phase ends");
      try {
        me.initial.compare(world, 0, 0);
      } catch (const Error&) {
        ++compared;
      }
    });
    CAPTURE(memory == &host_memory());
    CHECK(compared == 2);
  }
}

TEST_CASE("what is written to weights counts where no slot is open, whichever way they lie", "[unit_scopes]") {
  for (Memory* memory : both_memories()) {
    std::atomic<int> right{0};
    in_world(2, [&](JobWorld& world, std::uint32_t rank) {
      Gatherer me{world, rank, false, *memory};
      const std::uint64_t mine = shard(me.state.layout().units[1].trainable, me.shards.cuts[rank]).begin;
      must(me.open(1, between), "the weights");
      must(me.open(1, between), "once more");
      me.scopes.close(1, false, me.initial);
      me.state.unit(1)[mine] = 7;
      me.scopes.close(1, false, me.initial);
      right += me.state.weights(1, me.shards.cuts[rank])[0] == 7;
      must(me.open(1, between), "what was written");
      right += me.state.unit(1)[mine] == 7;
      me.scopes.close(1, false, me.initial);
      must(me.scopes.end_phase(between), "the phase ends");
      right += me.state.weights(1, me.shards.cuts[rank])[0] == 7;
    });
    CAPTURE(memory == &host_memory());
    CHECK(right == 2 * 3);
  }
}

TEST_CASE("in a slot of a device the shard stays as it is, for rounds read it meanwhile", "[unit_scopes]") {
  std::atomic<int> right{0};
  in_world(1, [&](JobWorld& world, std::uint32_t rank) {
    Gatherer me{world, rank, false, *both_memories()[1]};
    must(me.open(0, between), "a scope that is open when the slot begins");
    me.scopes.begin_slot(me.slot(0));
    must(me.open(1, me.slot(0)), "one of the slot");
    for (const std::uint32_t unit : {0u, 1u}) {
      me.state.unit(unit)[0] = 7;
      me.scopes.close(unit, false, me.initial);
      right += me.state.weights(unit, me.shards.cuts[rank])[0] == Gatherer::value(unit, 0);
    }
  });
  CHECK(right == 2);
}

TEST_CASE("leaves are handed off slot by slot, with and without overlap, and their sum is over all slots", "[unit_scopes]") {
  for (Memory* memory : both_memories())
    for (const bool overlap : {false, true}) {
      std::atomic<int> right{0};
      in_world(3, [&](JobWorld& world, std::uint32_t rank) {  // 4 slots: rank 0 has two, the others one
        Gatherer me{world, rank, overlap, *memory};
        must(me.rounds.in_phases() && me.rounds.overlaps() == overlap, "as planned");
        for (std::size_t i = 0; i < me.reducer.my_slots().size(); ++i) {
          me.scopes.begin_slot(me.slot(i));
          for (const std::uint32_t unit : {1u, 0u}) {
            me.scopes.require_use_left(unit, 0);
            must(me.scopes.fetch(unit, me.slot(i), true) && me.has(unit), "the weights are there");
            me.scopes.open(unit, me.slot(i), i);
            me.scopes.open_gradient(unit, me.slot(i), i);
            auto* const gradient = static_cast<float*>(me.units[unit]->tensors[0].grad);
            gradient[2] += static_cast<float>(me.reducer.my_slots()[i]) + 1;
            me.scopes.close(unit, true, me.initial);
            must(me.units[unit]->tensors[0].grad == nullptr, "the gradient is gone");
          }
          me.scopes.require_no_gradient_open(0);
          me.scopes.finish_leaves(me.slot(i), i);
          must(me.rounds.end_slot(me.slot(i)), "the slot ends");
        }
        must(me.scopes.end_step(0), "the step ends");
        must(me.rounds.is_through() && me.rounds.slots_through() == 2, "of the busiest rank");
        must(me.reducer.reduce(world).ok(), "the sums are there");
        for (const Piece& p : pieces(me.state.layout(), me.shards.cuts[rank]))
          if (p.begin <= 2 && 2 < p.end) right += me.reducer.reduced()[p.place + 2 - p.begin] == 1 + 2 + 3 + 4;
      });
      CAPTURE(overlap, memory == &host_memory());
      CHECK(right == 2);  // of each unit, one rank has that element
    }
}

TEST_CASE("a use_grad scope more than the tensors declare is refused, and one that is open names its unit", "[unit_scopes]") {
  std::vector<std::string> said(2);
  in_world(1, [&](JobWorld& world, std::uint32_t rank) {
    Gatherer me{world, rank};
    me.scopes.begin_slot(me.slot(0));
    must(me.open(1, me.slot(0)), "the weights");
    me.scopes.open_gradient(1, me.slot(0), 0);
    for (std::string* out : {&said[0], &said[1]}) try {
        if (out == &said[0]) me.scopes.require_no_gradient_open(5);
        else me.scopes.require_use_left(1, 5);
      } catch (const Error& e) {
        *out = e.failure().what;
      }
    me.scopes.close(1, true, me.initial);
  });
  CHECK_THAT(said[0], Catch::Contains("slot 5 ended inside a use_grad scope of unit 'b'"));
  CHECK_THAT(said[1], Catch::Contains("unit 'b' is in its 2. use_grad of slot 5, but its tensors declare 1 uses"));
}

TEST_CASE("when the world is over, a scope has memory and no wait", "[unit_scopes]") {
  std::atomic<int> right{0};
  in_world(2, [&](JobWorld& world, std::uint32_t rank) {
    Gatherer me{world, rank};
    world.end({Code::peer_lost, Remedy::rejoin, "rank 7 went away"});
    const bool came = me.open(0, between);
    static_cast<float*>(me.units[0]->tensors[0].data)[0] = 1;
    me.scopes.close(0, false, me.initial);
    right += !came && !me.scopes.end_phase(between) && !me.rounds.end_slot(me.slot(0)) && me.rounds.slots_through() == 0;
  });
  CHECK(right == 2);
}

}  // namespace elrun::test
