// ModelState without a job: its memory, cut, hash, and what it saves, loads and sends.

#include "lib/job/state/model_state.hpp"

#include "lib/job/declare/memory_table.hpp"
#include "lib/job/gradients/reducer.hpp"
#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

const std::vector<Placement>& placements() {
  static const std::vector<Placement> all{zero(0), zero(1), zero(2), zero(3)};
  return all;
}

/// Rank `rank` of `world`, with values that follow from an element's place in the model, whatever the world.
struct Part {
  Part(const Placement& placement, std::uint32_t world, std::uint32_t rank, Memory& memory = host_memory())
      : buffers{private_memory(memory)},
        shards{one_node(placement.optimizer, world)},
        state{lay_out(two_units()), placement, Optimizer::adamw, buffers} {
    state.plan_world(shards, rank, Space::gradients);
    state.allocate(shards.cuts[rank]);
    for (const Fragment& f : state.to_load()) {
      const std::span values{reinterpret_cast<float*>(f.bytes.data()), f.bytes.size() / sizeof(float)};
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(f.begin + i) + static_cast<float>(f.unit) / 4 + static_cast<float>(f.kind.size());
    }
  }
  SharedBuffers buffers;
  ShardMap shards;
  ModelState state;
};

}  // namespace

TEST_CASE("the parts of the state hash add up to one number, in any world and with any placement", "[model_state]") {
  const Part alone{zero(0), 1, 0};
  const std::uint64_t whole = alone.state.hash_part(alone.shards, 0);
  for (Memory* memory : both_memories())
    for (const Placement& placement : placements())
      for (const std::uint32_t world : {1u, 2u, 3u, 5u}) {
        std::uint64_t sum = 0;
        for (std::uint32_t r = 0; r < world; ++r) {
          const Part part{placement, world, r, *memory};
          sum += part.state.hash_part(part.shards, r);
        }
        CAPTURE(*name_of(placement), world, memory == &host_memory());
        CHECK(sum == whole);
      }
}

TEST_CASE("a sample of what is replicated differs where an update is missing, and its windows move with its number", "[model_state]") {
  constexpr std::uint64_t elements = 4'000'000;
  struct Held {
    explicit Held(const Placement& placement, SharedBuffers& buffers)
        : state{lay_out({{"a", {{"w", DType::f32, {elements}, {}}, {"table", DType::f32, {elements}, {.frozen = true}}}}}), placement,
                Optimizer::adamw, buffers} {
      const ShardMap shards = one_node(placement.optimizer, 1);
      state.plan_world(shards, 0, Space::gradients);
      state.allocate(shards.cuts[0]);
    }
    void add(float value, std::uint64_t begin, std::uint64_t end) {  // to frozen ones, which all placements have whole
      for (const Fragment& f : state.to_load()) {
        if (f.kind != "param") continue;
        const std::uint64_t from = std::max(elements + begin, f.begin),
                            to = std::min(elements + end, f.begin + f.bytes.size() / sizeof(float));
        for (std::uint64_t i = from; i < to; ++i) reinterpret_cast<float*>(f.bytes.data())[i - f.begin] += value;
      }
    }
    ModelState state;
  };
  for (const Placement& placement : {zero(0), zero(3)}) {
    CAPTURE(*name_of(placement));
    SharedBuffers buffers = private_memory();
    Held one{placement, buffers}, other{placement, buffers};
    one.add(1, 0, elements), other.add(1, 0, elements);
    const auto alike = [&](std::uint64_t sample) {
      return hash_of(host_memory(), one.state.replicated_sample(sample)) == hash_of(host_memory(), other.state.replicated_sample(sample));
    };
    CHECK(alike(1));
    other.add(1, elements / 2, elements / 2 + 1);
    int unseen = 0;
    for (std::uint64_t sample = 1; sample <= 40; ++sample) unseen += alike(sample);
    CHECK(unseen > 0);
    CHECK(unseen < 40);
    CHECK(hash_of(host_memory(), one.state.replicated_parameters()) != hash_of(host_memory(), other.state.replicated_parameters()));
    other.add(1, 0, elements);
    for (std::uint64_t sample = 1; sample <= 40; ++sample) CHECK_FALSE(alike(sample));
  }
}

TEST_CASE("what all ranks save is every element of every kind, replicated or exactly once", "[model_state]") {
  const Layout layout = lay_out(two_units());
  for (const Placement& placement : placements()) {
    std::map<std::pair<std::string, std::uint64_t>, std::vector<int>> seen;
    for (std::uint32_t r = 0; r < 3; ++r) {
      Part part{placement, 3, r};
      for (const Fragment& f : part.state.to_save(part.shards, r)) {
        auto& unit = seen[{f.kind, f.unit}];
        unit.resize(layout.units[f.unit].used);
        if (!f.replicated || r == 0)
          for (std::uint64_t i = f.begin; i < f.end; ++i) ++unit[i];
      }
    }
    CAPTURE(*name_of(placement));
    CHECK(seen.size() == 3 * 2);  // parameters and two moments, of two units
    for (const auto& [key, counts] : seen) {
      CAPTURE(key.first, key.second);
      CHECK(std::ranges::all_of(counts, [](int n) { return n == 1; }));
    }
  }
}

TEST_CASE("a recut that is undone leaves the old shard, and one that is finished only the new one", "[model_state]") {
  for (Memory* memory : both_memories())
    for (const Placement& placement : {zero(1), zero(3)}) {
      Part part{placement, 3, 1, *memory};
      const std::uint64_t before = part.state.hash_part(part.shards, 1);
      const std::uint64_t held = part.state.parameter_bytes();
      part.state.begin_recut({2, 1});
      CHECK(part.state.cut() == Cut{2, 1});
      part.state.undo_recut();
      CHECK(part.state.cut() == Cut{3, 1});
      CHECK(part.state.hash_part(part.shards, 1) == before);
      CHECK(part.state.parameter_bytes() == held);
      part.state.begin_recut({2, 1});
      part.state.finish_recut();
      CHECK(part.state.moment(0).size() == elements(pieces(part.state.layout(), {2, 1})));
      CHECK(part.state.parameter_bytes() == bytes_by_rank(part.state.layout(), placement, Optimizer::adamw, 1, 2, 2)[1].parameters);
    }
}

TEST_CASE("a state that is cut anew is sent whole, whatever was in its memory: parts of the new world hash as those of the old one",
          "[model_state]") {
  for (Memory* memory : both_memories())
    for (const Placement& placement : {zero(1), zero(3), mirrored(zero(1))}) {
      const ShardMap after = one_node(placement.optimizer, 3);
      std::uint64_t expected = 0;
      std::vector<MemberStatus> statuses;
      for (std::uint32_t r = 0; r < 2; ++r) {
        const Part part{placement, 2, r, *memory};
        expected += part.state.hash_part(part.shards, r);
        statuses.push_back({.has_state = true, .knowledge = {4, 4, 4}, .held = {.cut = part.shards.cuts[r]}});
      }
      statuses.push_back({});  // a newcomer
      const StateTransfer plan = plan_state_transfer(lay_out(two_units()), statuses, 4, after.cuts);
      REQUIRE(plan.complete);
      std::atomic<std::uint64_t> sum{0};
      std::atomic<int> failed{0};
      in_world(3, [&](JobWorld& world, std::uint32_t r) {
        SharedBuffers buffers = private_memory(*memory);
        ModelState state;
        if (r < 2) {
          Part had{placement, 2, r, *memory};
          state = std::move(had.state);
        } else {
          state = ModelState{lay_out(two_units()), placement, Optimizer::adamw, buffers};
          state.allocate(after.cuts[r]);
        }
        state.reserve_moments(memory == &host_memory());
        for (std::size_t m = 0; memory == &host_memory() && m < state.moments(); ++m) {
          Arena<float> used{state.layout().gradients};
          std::ranges::fill(used.span(), std::numeric_limits<float>::quiet_NaN());
          state.reserved_moments().push_back(std::move(used));
        }
        if (state.cut() != after.cuts[r]) state.begin_recut(after.cuts[r]);
        const StateMove moved = state.transfer(plan, statuses, after, r);
        state.copy(moved.kept);
        failed += !world.exchange(moved.exchange.sends, moved.exchange.receives).ok();
        state.finish_recut();
        sum += state.hash_part(after, r);
      });
      CAPTURE(*name_of(placement), memory == &host_memory());
      CHECK(failed == 0);
      CHECK(sum == expected);
    }
}

TEST_CASE("of what is frozen each member that brings a state gives a newcomer a part", "[model_state]") {
  const Layout layout = lay_out({{"a", {{"w", DType::f32, {5000}, {}}, {"table", DType::f32, {8 * granule + 5}, {.frozen = true}}}},
                                 {"b", {{"small", DType::f32, {3}, {.frozen = true}}}}});
  for (const Placement& placement : {zero(0), zero(1), zero(3)}) {
    const ShardMap before = one_node(placement.optimizer, 4), after = one_node(placement.optimizer, 5);
    std::vector<MemberStatus> statuses;
    for (std::uint32_t r = 0; r < 4; ++r) statuses.push_back({.has_state = true, .knowledge = {4, 4, 4}, .held = {.cut = before.cuts[r]}});
    statuses.insert(statuses.begin() + 2, MemberStatus{});  // the newcomer is rank 2 of five
    const StateTransfer plan = plan_state_transfer(layout, statuses, 4, after.cuts);
    REQUIRE(plan.complete);
    std::vector<std::uint64_t> given(5);  // bytes of what is frozen, by rank
    std::atomic<int> wrong{0};
    in_world(5, [&](JobWorld& world, std::uint32_t r) {
      SharedBuffers buffers = private_memory();
      ModelState state{layout, placement, Optimizer::adamw, buffers};
      state.allocate(plan.held[r].value_or(after.cuts[r]));
      const std::span<float> table = state.frozen(0).first(8 * granule + 5), small = state.frozen(1).first(3);
      if (plan.held[r]) {
        std::iota(table.begin(), table.end(), 1.0f);
        std::ranges::fill(small, 7.0f);
      }
      if (state.cut() != after.cuts[r]) state.begin_recut(after.cuts[r]);
      const StateMove moved = state.transfer(plan, statuses, after, r);
      state.copy(moved.kept);
      for (const auto& piece : moved.exchange.sends[2])
        for (const std::span<float> run : {table, small})
          if (piece.data() >= std::as_bytes(run).data() && piece.data() < std::as_bytes(run).data() + run.size_bytes())
            given[r] += piece.size();
      wrong += !world.exchange(moved.exchange.sends, moved.exchange.receives).ok();
      state.finish_recut();
      for (std::size_t i = 0; i < table.size(); ++i) wrong += table[i] != static_cast<float>(i + 1);
      wrong += std::ranges::count(small, 7.0f) != 3;
    });
    CAPTURE(*name_of(placement));
    CHECK(wrong == 0);
    CHECK(given == std::vector<std::uint64_t>{3 * granule * 4 + 12, 3 * granule * 4, 0, (2 * granule + 5) * 4, 0});
  }
}

TEST_CASE("padding is set to zero, and nothing else", "[model_state]") {
  Part part{zero(0), 1, 0};
  const std::uint64_t before = part.state.hash_part(part.shards, 0);
  const UnitLayout& b = part.state.layout().units[1];
  REQUIRE(b.size > b.used);
  part.state.parameters().span()[b.begin + b.used] = 1;
  CHECK(part.state.hash_part(part.shards, 0) != before);
  part.state.zero_padding();
  CHECK(part.state.hash_part(part.shards, 0) == before);
}

TEST_CASE("a unit that is let go of keeps this rank's shard alone", "[model_state]") {
  for (Memory* memory : both_memories()) {
    CAPTURE(memory == &host_memory());
    Part part{zero(3), 2, 0, *memory};
    const std::uint64_t held = part.state.parameter_bytes();
    part.state.hold_unit(1);
    part.state.hold_unit(1);  // it is held already
    CHECK(part.state.parameter_bytes_max() > held);
    CHECK(part.state.unit(1)[3] == 3 + 0.25f + 5);
    part.state.let_go_of_unit(1);
    CHECK(part.state.parameter_bytes() == held);
    CHECK(part.state.weights(1, part.state.cut())[3] == 3 + 0.25f + 5);
  }
}

TEST_CASE("what a program writes to a unit is the shard's once it is kept", "[model_state]") {
  for (Memory* memory : both_memories()) {
    CAPTURE(memory == &host_memory());
    Part part{zero(3), 2, 0, *memory};
    part.state.hold_unit(1);
    part.state.unit(1)[3] = 7;
    part.state.keep_written(1);
    part.state.let_go_of_unit(1);
    CHECK(part.state.weights(1, part.state.cut())[3] == 7);
    part.state.hold_unit(1);
    CHECK(part.state.unit(1)[3] == 7);
  }
}

TEST_CASE("on a device units lie in buffers, as many as are held at one time", "[model_state]") {
  Part part{zero(3), 2, 0, *both_memories()[1]};
  const std::uint64_t shard = part.state.parameter_bytes(), buffer = part.state.layout().units[1].trainable * sizeof(float);
  REQUIRE(part.state.layout().units[0].trainable * sizeof(float) < buffer);
  CHECK(part.state.parameter_bytes_max() == shard);
  for (int times = 0; times < 3; ++times)
    for (const std::uint32_t unit : {0u, 1u}) part.state.hold_unit(unit), part.state.let_go_of_unit(unit);
  CHECK(part.state.parameter_bytes_max() == shard + buffer);
  part.state.hold_unit(0);
  part.state.hold_unit(1);
  CHECK(part.state.unit(0).data() != part.state.unit(1).data());
  CHECK(part.state.parameter_bytes_max() == shard + 2 * buffer);
  CHECK(part.state.parameter_bytes() == shard);
}

TEST_CASE("after an update the parameters are whole where nobody else updates a part of them", "[model_state]") {
  for (Memory* memory : both_memories())
    for (const auto& [placement, whole] : {std::pair{zero(0), true}, {zero(1), false}, {zero(3), true}}) {
      Part part{placement, 2, 0, *memory};
      const std::vector<float> gradient(part.state.layout().gradients, 1.0f);
      const float& first = part.state.weights(0, part.state.cut())[0];
      const float before = first;
      part.state.update(AdamW{}, 0.1f, 1.0f, 1, gradient.data());
      CHECK(first != before);
      CHECK(part.state.is_whole() == whole);
    }
}

namespace {

/// The host's, and counts what is there.
class CountingMemory final : public ForwardingMemory {
 public:
  void* allocate(std::size_t bytes) override {
    void* const at = host.allocate(bytes);
    sizes[at] = bytes, allocated += bytes;
    return at;
  }
  void free(void* memory) noexcept override {
    allocated -= sizes[memory];
    host.free(memory);
  }
  std::uint64_t hash(std::span<const std::byte> run, std::uint64_t first_word, std::uint64_t salt) override {
    ++hashes;
    return host.hash(run, first_word, salt);
  }
  void* reserve(std::size_t bytes, Paging paging) override {
    ++reservations;
    return host.reserve(bytes, paging);
  }
  void unreserve(void* memory, std::size_t bytes) noexcept override {
    --reservations;
    host.unreserve(memory, bytes);
  }
  void hold(std::span<std::byte> pages) override {
    ++holds;
    host.hold(pages);
  }
  void give_back(std::span<std::byte> pages) override {
    ++returns;
    host.give_back(pages);
  }

  std::map<void*, std::size_t> sizes;
  std::uint64_t allocated = 0;
  int reservations = 0, holds = 0, returns = 0, hashes = 0;
};

}  // namespace

TEST_CASE("all that a state and a reducer hold is of one memory, and given back to it", "[memory]") {
  CountingMemory memory;
  SharedBuffers buffers{{}, quiet(), memory};
  RoundsMemory rounds{memory};
  for (const int stage : {0, 1, 2, 3}) {
    const Layout layout = lay_out(two_units());
    const ShardMap shards = one_node(zero(stage).optimizer, 3);
    ModelState state{layout, zero(stage), Optimizer::adamw, buffers};
    state.plan_world(shards, 1, Space::gradients);
    state.allocate(shards.cuts[1]);
    CHECK(memory.reservations == 1);  // the parameters
    // Zeros for a checkpoint's frozen moments, and a run of the optimizer phase for each of the two units.
    CHECK(memory.allocated == state.moments_bytes() + 300 * sizeof(float) + 2 * sizeof(UpdateRun));
    const int hashes = memory.hashes;
    (void)state.hash_part(shards, 1);
    CHECK(memory.hashes > hashes);
    for (const auto exchanges : {GradientReducer::Exchanges::per_step, GradientReducer::Exchanges::per_slot}) {
      const std::uint64_t before = memory.allocated;
      const GradientReducer reducer{layout, shards, 1, 6, exchanges, Reduce::exact, DType::bf16, buffers, rounds};
      const std::uint64_t norm = elements(pieces(layout, shards.folds[1])) / granule * sizeof(float);
      // Of six slots each rank adds two: three operands are left. Each of the two units is a piece.
      const std::uint64_t tables = reducer.is_per_slot() ? 0 : 3 * sizeof(ReduceOperand) + 2 * sizeof(ReducePiece);
      CHECK(memory.allocated - before == reducer.bytes() + reducer.exchange_bytes() + norm + tables);
      CHECK(memory.reservations == (reducer.is_per_slot() ? 3 : 1));  // leaves, and what arrives
    }
  }
  CHECK(memory.allocated == 0);
  CHECK(memory.reservations == 0);
}

TEST_CASE("a shard that is cut anew takes what was told beside the old one, until all have theirs", "[memory]") {
  const Layout layout = lay_out({{"u", {{"w", DType::f32, {64 * granule}, {}}}}, {"v", {{"w", DType::f32, {9 * granule}, {}}}}});
  for (const std::vector<std::uint32_t>& nodes :
       std::vector<std::vector<std::uint32_t>>{{0, 0}, {0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1, 1}, {0, 0, 0, 0, 0}})
    for (const Placement& placement : {zero(0), zero(1), zero(3), hybrid(zero(2)), mirrored(zero(1)), mirrored(zero(3))}) {
      CAPTURE(*name_of(placement), nodes);
      const ShardMap before = shard_map(placement.optimizer, nodes);
      std::uint64_t most = 0;
      for (const bool first : {true, false}) {
        const std::span all{nodes};
        const ShardMap after = shard_map(placement.optimizer, first ? all.subspan(1) : all.first(all.size() - 1));
        for (std::uint32_t r = 0; r < after.world(); ++r) {
          const Cut had = before.cuts[r + (first ? 1 : 0)];
          CountingMemory memory;
          SharedBuffers buffers{{}, quiet(), memory};
          ModelState state{layout, placement, Optimizer::adamw, buffers};
          state.allocate(had);
          const auto held = [&] { return memory.allocated + state.parameter_bytes(); };
          const std::uint64_t with_the_old = held();
          if (had != after.cuts[r]) state.begin_recut(after.cuts[r]);
          const std::uint64_t more = held() - with_the_old;
          CHECK(more == recut_bytes(layout, placement, Optimizer::adamw, had, after.cuts[r]));
          most = std::max(most, more);
          const std::uint64_t with_both = held();
          state.finish_recut();
          CHECK(with_both - held() == recut_bytes(layout, placement, Optimizer::adamw, after.cuts[r], had));  // the other way
          const std::uint64_t with_the_new = held();
          if (had != after.cuts[r]) state.begin_recut(had), state.undo_recut();
          CHECK(held() == with_the_new);
        }
      }
      CHECK(most == recut_bytes(layout, placement, Optimizer::adamw, nodes));
    }
  // On a device the new shard is an array of its own.
  CHECK(recut_bytes(layout, zero(3), Optimizer::adamw, {2, 0}, {1, 0}, DeviceKind::cuda) == 3 * 73 * granule * sizeof(float));
  CHECK(recut_bytes(layout, zero(3), Optimizer::adamw, {2, 0}, {1, 0}) < 3 * 73 * granule * sizeof(float));
}

TEST_CASE("pages of a unit come from the state's memory and go back to it", "[memory]") {
  CountingMemory memory;
  SharedBuffers buffers{{}, quiet(), memory};
  ModelState state{lay_out(two_units()), zero(3), Optimizer::sgd, buffers};
  const ShardMap shards = one_node(Sharding::sharded, 2);
  state.plan_world(shards, 0, Space::shard);
  state.allocate(shards.cuts[0]);
  const int holds = memory.holds, returns = memory.returns;
  state.hold_unit(1);
  CHECK(memory.holds == holds + 1);
  state.let_go_of_unit(1);
  CHECK(memory.returns > returns);
}

TEST_CASE("reserved pages of the host have memory of zeros while they are held", "[memory]") {
  Memory& memory = host_memory();
  const std::size_t page = memory.page_bytes();
  auto* const at = static_cast<std::byte*>(memory.reserve(3 * page, Memory::Paging::comes_and_goes));
  const std::span<std::byte> second{at + page, page};
  memory.hold(second);
  CHECK(second[0] == std::byte{0});
  second[0] = std::byte{7};
  memory.hold(second);  // it is held already
  CHECK(second[0] == std::byte{7});
  memory.give_back(second);
  memory.hold(second);
  CHECK(second[0] == std::byte{0});
  memory.unreserve(at, 3 * page);
}

}  // namespace elrun::test
