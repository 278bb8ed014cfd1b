// The arithmetic of --plan: known sums, and what the job then really allocates.

#include "lib/job/memory.hpp"

#include "lib/job/assign.hpp"
#include "lib/job/gradients.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

UnitSpec unit(const char* name, std::vector<std::pair<std::uint64_t, bool>> tensors) {
  UnitSpec out{name, {}};
  for (const auto& [size, frozen] : tensors)
    out.tensors.push_back({fmt::format("t{}", out.tensors.size()), DType::f32, {size}, {.frozen = frozen}});
  return out;
}
/// 8 granules that train, and one frozen.
std::vector<UnitSpec> small() { return {unit("a", {{5000, false}, {300, true}}), unit("b", {{2048, false}, {7, false}})}; }
constexpr std::uint64_t granule_bytes = 1024 * sizeof(float);

}  // namespace

TEST_CASE("bytes by state of a small model, added up by hand", "[memory]") {
  const Layout layout = lay_out(small());
  REQUIRE(layout.gradients == 8 * 1024);
  REQUIRE(layout.parameters == 9 * 1024);
  const auto of = [&](int stage, std::uint32_t slots, std::uint32_t world) {
    auto ranks = bytes_by_rank(layout, zero(stage), Optimizer::adamw, slots, world, world);
    for (RankBytes& b : ranks)
      for (std::uint64_t* bytes : {&b.parameters, &b.gradients, &b.optimizer, &b.exchange, &b.in_use}) *bytes /= granule_bytes;
    return ranks;
  };
  // Alone: one slot needs one buffer, four need three (two halves, and the second of a half).
  CHECK(of(0, 1, 1) == std::vector<RankBytes>{{9, 8, 16, 0, 0}});
  CHECK(of(0, 4, 1) == std::vector<RankBytes>{{9, 24, 16, 0, 0}});
  // Two ranks with one slot each: half of the model (3 of 5 granules, 2 of 3) comes from the other.
  CHECK(of(0, 2, 2) == std::vector<RankBytes>{{9, 8, 16, 5, 0}, {9, 8, 16, 3, 0}});
  CHECK(of(1, 2, 2) == std::vector<RankBytes>{{9, 8, 10, 5, 0}, {9, 8, 6, 3, 0}});
  // zero(2): one partial sum of the shard; in use the leaf of the larger unit, and the other rank's part of it.
  CHECK(of(2, 2, 2) == std::vector<RankBytes>{{9, 5, 10, 0, 5 + 3}, {9, 3, 6, 0, 5 + 2}});
  // Four ranks for two slots: those without one make no leaf, and get both of the others'.
  CHECK(of(2, 2, 4) == std::vector<RankBytes>{{9, 3, 6, 0, 5 + 2}, {9, 3, 6, 0, 5 + 2}, {9, 2, 4, 0, 2 * 1 + 0}, {9, 0, 0, 0, 0}});
  // zero(3): its shard and what is frozen; in use also the weights that are not its own.
  CHECK(of(3, 2, 2) == std::vector<RankBytes>{{6, 5, 10, 0, 5 + 3 + 2}, {4, 3, 6, 0, 5 + 2 + 3}});
}

TEST_CASE("what is worked out for gradients and exchange is what is allocated, in every world", "[memory]") {
  const Layout layout = lay_out(small());
  for (const auto& [reduce, leaves] : {std::pair{Reduce::exact, DType::f32}, {Reduce::exact, DType::bf16}, {Reduce::fast, DType::f32}})
    for (const std::uint32_t slots : {1u, 2u, 3u, 4u, 7u, 8u, 12u, 16u})
      for (std::uint32_t world = 1; world <= 9; ++world) {
        const auto told = bytes_by_rank(layout, zero(0), Optimizer::sgd, slots, world, world, reduce, leaves);
        for (std::uint32_t r = 0; r < world; ++r) {
          const Gradients gradients{layout, assign_slots(slots, world), holders(Spread::replicated, std::vector<std::uint32_t>(world)), r, reduce, leaves};
          CAPTURE(slots, world, r);
          CHECK(told[r].gradients == gradients.buffers() * layout.gradients * sizeof(float));
          CHECK(told[r].exchange == gradients.exchange_bytes());
          if (reduce == Reduce::fast) CHECK(gradients.buffers() <= 2);
        }
      }
}

TEST_CASE("no stage takes more of what it cuts, and the shards add up", "[memory]") {
  const Layout layout = lay_out(small());
  for (std::uint32_t world = 1; world <= 12; ++world) {
    std::vector<std::vector<RankBytes>> stages;
    for (const int stage : {0, 1, 2, 3}) stages.push_back(bytes_by_rank(layout, zero(stage), Optimizer::adamw, 8, world, world));
    std::uint64_t optimizer = 0;
    for (std::uint32_t r = 0; r < world; ++r) {
      CHECK(stages[1][r].optimizer <= stages[0][r].optimizer);
      CHECK(stages[3][r].parameters <= stages[2][r].parameters);
      optimizer += stages[1][r].optimizer;
    }
    CHECK(optimizer == stages[0][0].optimizer);
  }
}

TEST_CASE("slots that leave ranks idle are told, with what helps", "[memory]") {
  CHECK(slots_line(8, 4) == "8 slots per step on 4 rank(s), 2 each, 100 % of the compute");
  CHECK(slots_line(8, 3) == "8 slots per step on 3 rank(s), 2 to 3 each, 89 % of the compute");
  CHECK(slots_line(2, 5) == "2 slots per step on 5 rank(s), 0 to 1 each, 40 % of the compute");
  CHECK(efficiency_warning(8, 4).empty());
  CHECK(efficiency_warning(9, 10).empty());  // 90 % exactly
  CHECK(efficiency_warning(8, 3).find("8 slots leave 3 ranks idle 11 % of the time") == 0);
}

TEST_CASE("the table has a row per placement, from the job too", "[memory]") {
  std::string text;
  const auto members = run_world({}, [&](Job& job, Member&) {
    Plan plan = toy_plan(0);
    job.configure(plan);
    (void)job.unit("u").tensor<float>("t", {5000});
    text = job.plan_table(3);
  });
  REQUIRE_FALSE(members[0].failure.has_value());
  INFO(text);
  CHECK(text.find("5000 parameters in 1 unit(s), adamw; 8 slots per step on 3 rank(s)") == 0);
  CHECK(text.find("\nwarning: 8 slots leave 3 ranks idle 11 %") != std::string::npos);
  for (const char* row : {"\nzero(0) ", "\nzero(1) ", "\nzero(2) ", "\nzero(3) "}) CHECK(text.find(row) != std::string::npos);
  const auto failure = run_world({}, [](Job& job, Member&) { job.configure(toy_plan(0)), (void)job.plan_table(3); })[0].failure;
  REQUIRE(failure.has_value());
  CHECK(exit_code(*failure) == 78);
}

}  // namespace elrun::test
