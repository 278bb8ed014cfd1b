// GradientReducer without a job: both evaluations of the tree give the same bits, in any world.

#include "lib/job/gradients/reducer.hpp"

#include <limits>

#include "tests/unit/job_parts.hpp"

namespace elrun::test {
namespace {

constexpr std::uint32_t slot_count = 6;

/// The gradient of one element of one slot: numbers whose sums depend on the order of additions.
float gradient_of(std::uint32_t slot, std::uint64_t element) {
  return 1.0f / static_cast<float>(1 + (element * 7 + slot * 13) % 101) + static_cast<float>(slot) * 1e-6f;
}

/// What all ranks have of the reduced gradient, by element, and the sum of its squares.
struct Reduced {
  std::map<std::uint64_t, float> elements;
  float squares = 0;
  friend bool operator==(const Reduced&, const Reduced&) = default;
};

/// `before`: by rank, buffers of the reducer of another world; those of this one are put there.
Reduced reduce(std::uint32_t world_size, Sharding sharding, GradientReducer::Exchanges exchanges, DType leaves,
               Memory& memory = host_memory(), std::vector<GradientBuffers>* before = nullptr) {
  const Layout layout = lay_out(two_units());
  Reduced out;
  std::mutex mutex;
  std::vector<std::vector<float>> nodes(world_size);
  std::vector<std::span<const float>> views(world_size);
  in_world(world_size, [&](JobWorld& world, std::uint32_t rank) {
    SharedBuffers buffers = private_memory(memory);
    RoundsMemory rounds{memory};
    const ShardMap shards = one_node(sharding, world_size);
    GradientReducer reducer{layout,        shards, rank,    slot_count, exchanges,
                            Reduce::exact, leaves, buffers, rounds,     before != nullptr ? &(*before)[rank] : nullptr};
    reducer.begin_step();
    for (std::size_t phase = 0; phase < reducer.slots_of_busiest(); ++phase) {
      const bool busy = phase < reducer.my_slots().size();
      for (std::uint32_t u = 0; busy && u < layout.units.size(); ++u) {
        reducer.begin_unit(u, phase);
        const UnitLayout& unit = layout.units[u];
        float* const at = reducer.made_in(u, phase);
        for (std::uint64_t i = 0; i < unit.trainable; ++i) at[i] += gradient_of(reducer.my_slots()[phase], unit.gradient_begin + i);
        if (!reducer.is_per_slot()) continue;
        reducer.stream().finish_leaf(u);
      }
      if (busy) reducer.end_slot(phase);
      if (!reducer.is_per_slot()) continue;
      for (std::uint32_t u = 0; u < layout.units.size(); ++u) {  // what a round does for all ranks at once
        Delivery round{std::vector<SendList>(world_size), std::vector<ReceiveList>(world_size)};
        for (std::uint32_t r = 0; r < world_size; ++r) {
          if (r != rank && busy) round.sends[r].push_back(reducer.stream().part_for(u, r));
          if (r != rank && r < reducer.stream().busy()) round.receives[r].push_back(reducer.stream().arriving(u, r));
        }
        (void)world.exchange(round.sends, round.receives);
        for (std::uint32_t r = 0, all = reducer.stream().busy(); r < all; ++r) (void)reducer.stream().arrived(u, r);
      }
      (void)reducer.stream().next();
    }
    (void)reducer.reduce(world);
    nodes[rank].resize(reducer.norm_nodes()[rank]);
    reducer.fold_norm(nodes[rank]);
    const std::lock_guard lock{mutex};
    views[rank] = nodes[rank];
    for (const Piece& p : pieces(layout, shards.cuts[rank]))
      for (std::uint64_t i = 0; i < p.size(); ++i) out.elements[p.gradient + i] = reducer.reduced()[begin_in(reducer.space(), p) + i];
    if (std::ranges::all_of(views, [](const auto& v) { return v.data() != nullptr; })) out.squares = reducer.sum_of_squares(views);
    if (before != nullptr) reducer.hand_on((*before)[rank]);
  });
  return out;
}

}  // namespace

TEST_CASE("both evaluations of the tree give the same gradient and the same norm, in any world", "[reducer]") {
  for (const DType leaves : {DType::f32, DType::bf16}) {
    const Reduced expected = reduce(1, Sharding::replicated, GradientReducer::Exchanges::per_step, leaves);
    CHECK(expected.elements.size() == lay_out(two_units()).gradients);
    CHECK(expected.squares > 0);
    for (const std::uint32_t world : {1u, 2u, 3u, 4u})
      for (const Sharding sharding : {Sharding::replicated, Sharding::sharded})
        for (const auto exchanges : {GradientReducer::Exchanges::per_step, GradientReducer::Exchanges::per_slot}) {
          for (Memory* memory : both_memories()) {
            CAPTURE(world, sharding == Sharding::sharded, exchanges == GradientReducer::Exchanges::per_slot, leaves == DType::bf16,
                    memory == &host_memory());
            CHECK(reduce(world, sharding, exchanges, leaves, *memory) == expected);
          }
        }
  }
}

TEST_CASE("a reducer takes the buffers of the one for the world before over, whatever is in them", "[reducer]") {
  for (const DType leaves : {DType::f32, DType::bf16})
    for (Memory* memory : both_memories()) {
      CAPTURE(leaves == DType::bf16, memory == &host_memory());
      const auto per_step = GradientReducer::Exchanges::per_step;
      const Reduced expected = reduce(1, Sharding::replicated, per_step, leaves);
      std::vector<GradientBuffers> buffers(3);
      const float* first = nullptr;
      for (const std::uint32_t world : {2u, 1u, 3u, 2u}) {
        CAPTURE(world);
        CHECK(reduce(world, Sharding::sharded, per_step, leaves, *memory, &buffers) == expected);
        REQUIRE_FALSE(buffers[0].whole.empty());
        if (first != nullptr) CHECK(buffers[0].whole.front().data() == first);
        first = buffers[0].whole.front().data();
        CHECK(buffers[0].whole.size() == (world == 1 ? 3 : 2));
        for (Arena<float>& buffer : buffers[0].whole) std::ranges::fill(buffer.span(), std::numeric_limits<float>::quiet_NaN());
        for (Arena<float>& buffer : buffers[0].received) std::ranges::fill(buffer.span(), std::numeric_limits<float>::quiet_NaN());
      }
      (void)reduce(2, Sharding::sharded, GradientReducer::Exchanges::per_slot, leaves, *memory, &buffers);
      CHECK(buffers[0].whole.empty());
      CHECK(buffers[0].received.empty());
    }
}

TEST_CASE("what arrives does so in the memory of the world before where that fits, and in no much larger one", "[reducer]") {
  const auto per_step = GradientReducer::Exchanges::per_step;
  const Reduced expected = reduce(1, Sharding::replicated, per_step, DType::f32);
  std::vector<GradientBuffers> buffers(4);
  const auto in_world_of = [&](std::uint32_t world) {
    CHECK(reduce(world, Sharding::sharded, per_step, DType::f32, host_memory(), &buffers) == expected);
    const std::vector<Arena<float>>& room = buffers[0].received;
    REQUIRE(room.size() <= 1);
    return room.empty() ? std::pair<float*, std::uint64_t>{} : std::pair{room[0].data(), room[0].capacity()};
  };
  const auto first = in_world_of(4);  // rank 0 folds four granules, and three nodes come from others
  CHECK(first.second == 12 * granule);
  CHECK(in_world_of(3) == first);  // two of five granules
  CHECK(in_world_of(4) == first);
  CHECK(in_world_of(2).second == 14 * granule);  // two of seven
  CHECK(in_world_of(3).second == 10 * granule);  // what was there is two fifths larger
  CHECK(in_world_of(1).second == 0);
}

TEST_CASE("every slot is some rank's, whichever the evaluation", "[reducer]") {
  SharedBuffers buffers = private_memory();
  RoundsMemory rounds{host_memory()};
  for (const auto exchanges : {GradientReducer::Exchanges::per_step, GradientReducer::Exchanges::per_slot})
    for (const std::uint32_t world : {1u, 4u, 8u}) {
      const GradientReducer reducer{
          lay_out(two_units()), one_node(Sharding::sharded, world), 0, slot_count, exchanges, Reduce::exact, DType::f32, buffers, rounds};
      std::vector<std::uint32_t> all;
      for (const auto& of_rank : reducer.slots_by_rank()) all.insert(all.end(), of_rank.begin(), of_rank.end());
      std::ranges::sort(all);
      std::vector<std::uint32_t> expected(slot_count);
      std::iota(expected.begin(), expected.end(), 0);
      CHECK(all == expected);
      CHECK(reducer.slots_of_busiest() == (slot_count + world - 1) / world);
    }
}

TEST_CASE("peers are shown the buffers in which nodes of the tree lie, and no deeper ones", "[reducer]") {
  SharedBuffers buffers{SharedBuffer::make, quiet()};
  RoundsMemory rounds{host_memory()};
  // Of eight slots each of two ranks has an aligned half, which is one node.
  const GradientReducer reducer{lay_out(two_units()),
                                one_node(Sharding::replicated, 2),
                                0,
                                8,
                                GradientReducer::Exchanges::per_step,
                                Reduce::exact,
                                DType::f32,
                                buffers,
                                rounds};
  CHECK(reducer.buffers() == 3);
  CHECK(reducer.shared().size() == 1);
}

}  // namespace elrun::test
