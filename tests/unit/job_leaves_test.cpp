// Leaves in bf16: how they are rounded, what travels, and that it makes another job.

#include "lib/job/gradients/leaves.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/convert.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {
namespace {

Plan with_leaves(DType leaves, Plan plan) {
  plan.leaves = leaves;
  return plan;
}

constexpr float no_number = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("a float becomes the nearest bf16, on a tie the even one; what is no number stays none", "[leaves]") {
  struct Row {
    std::uint32_t bits;
    std::uint16_t rounded;
  };
  const Row rows[] = {
      {0x3f800000, 0x3f80},                                              // 1
      {0x3f807fff, 0x3f80},                                              // just below the middle between 1 and the next
      {0x3f808000, 0x3f80},                                              // the middle: 0x3f80 is even
      {0x3f808001, 0x3f81},                                              // just above it
      {0x3f818000, 0x3f82},                                              // the next middle: 0x3f81 is odd
      {0x3fffffff, 0x4000},                                              // up into the next power of two
      {0xbf808001, 0xbf81},                                              // signs do not matter
      {0xbf808000, 0xbf80}, {0x00000000, 0x0000}, {0x80000000, 0x8000},  // both zeros
      {0x00000001, 0x0000},                                              // the smallest of all is nearest to zero
      {0x00008001, 0x0001}, {0x007fffff, 0x0080},                        // those below the normal ones are numbers like others
      {0x7f7f7fff, 0x7f7f},                                              // the largest that is not infinity
      {0x7f7f8000, 0x7f80}, {0xff7fffff, 0xff80},                        // and beyond
      {0x7f800000, 0x7f80}, {0xff800000, 0xff80},                        // infinity stays
      {0x7f800001, 0x7fff}, {0x7fc00000, 0x7fff}, {0xffffffff, 0x7fff},  // every NaN is the same one
  };
  const std::uint16_t the_nan = to_bf16(no_number).bits;
  for (const Row& row : rows) {
    INFO(fmt::format("{:08x}", row.bits));
    const bf16 rounded = to_bf16(std::bit_cast<float>(row.bits));
    CHECK(rounded.bits == (row.rounded == 0x7fff ? the_nan : row.rounded));
    CHECK(std::isnan(to_float(rounded)) == std::isnan(std::bit_cast<float>(row.bits)));
  }
}

TEST_CASE("a leaf is rounded where it lies, as floats or packed into its first half", "[leaves]") {
  for (const std::uint64_t size : {1u, 7u, 1024u, 5 * 1024u, 5000u}) {
    std::vector<float> leaf(size);
    for (std::uint64_t i = 0; i < size; ++i)
      leaf[i] = i % 100 == 7   ? no_number
                : i % 100 == 8 ? -infinity
                               : std::ldexp(1.0f + static_cast<float>(i) * 0x1p-13f, static_cast<int>(i % 60) - 30);
    std::vector<bf16> expected;
    for (const float x : leaf) expected.push_back(to_bf16(x));
    std::vector<float> rounded = leaf;
    host_memory().round_to_bf16(rounded);
    host_memory().pack_to_bf16(leaf);
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < size; ++i)
      wrong += packed(leaf.data(), i, 1)[0] != expected[i] || std::bit_cast<std::uint32_t>(rounded[i]) != std::uint32_t{expected[i].bits}
                                                                                                              << 16;
    INFO(size << " elements");
    CHECK(wrong == 0);
  }
}

TEST_CASE("leaves in bf16 are half the bytes wherever a leaf travels, and nothing else is less", "[leaves]") {
  const auto per_step = [](const Plan& plan, std::uint32_t world) {
    std::uint64_t sent[2] = {};
    for (const std::uint64_t steps : {1, 2}) {
      Plan p = plan;
      p.steps = steps, p.overlap = false;  // with it the number of rounds is no constant
      const auto members = run_world({.world = world, .bytes_sent = &sent[steps - 1]}, toy({.plan = p}));
      for (const Member& m : members) REQUIRE(m.outcome.has_value());
    }
    return sent[1] - sent[0];
  };
  struct Row {
    int stage;
    Exchange exchange;
    std::uint32_t world;
    std::uint64_t leaves;  // that go out in a step: each to all but its own rank's shard
  };
  for (const Row& row : {Row{2, Exchange::per_slot, 4, 8}, Row{0, Exchange::per_slot, 2, 8}, Row{3, Exchange::per_slot, 8, 8},
                         Row{1, Exchange::per_step, 8, 8}, Row{0, Exchange::per_step, 3, 2},  // packed as 2 + 1, 2 + 1 and 2
                         Row{1, Exchange::per_step, 4, 0}}) {  // two slots each: their sums travel, and they are fp32
    INFO("zero(" << row.stage << ") on " << row.world << " ranks, exchanged "
                 << (row.exchange == Exchange::per_slot ? "per slot" : "per step"));
    const Plan plan = toy_plan(row.stage, 8, row.exchange);
    const std::uint64_t with_floats = per_step(plan, row.world), with_halves = per_step(with_leaves(DType::bf16, plan), row.world);
    // The toy has 9 granules of 4 kB. Ranks hand out as many leaves each, so all shards together are left out of as many.
    if (row.leaves == 8) CHECK(with_floats - with_halves == (8 * 9 - 8 / row.world * 9) * 2048);
    if (row.leaves == 2) CHECK(with_floats - with_halves == (2 * 9 - 4 - 3) * 2048);  // of the shards of ranks 0 and 1
    if (row.leaves == 0) CHECK(with_floats == with_halves);
  }
}

TEST_CASE("leaves that are not f32 make another job: said at seal(), and its checkpoint refuses the other kind", "[leaves]") {
  for (const DType first : {DType::f32, DType::bf16}) {
    const TemporaryDirectory root;
    const CheckpointOptions checkpoint{.directory = root.path()};
    Plan plan = with_leaves(first, toy_plan(2));
    plan.steps = 1;
    const auto members = run_world({.world = 2}, toy({.plan = plan, .checkpoint = checkpoint}));
    REQUIRE(members[0].outcome.has_value());
    const bool said =
        std::ranges::any_of(members[0].lines, [](const std::string& line) { return contains(line, "gradients rounded to bf16"); });
    CHECK(said == (first == DType::bf16));
    plan.leaves = first == DType::f32 ? DType::bf16 : DType::f32;
    for (const Member& m : run_world({.world = 3, .generation = 2}, toy({.plan = plan, .checkpoint = checkpoint}))) {
      REQUIRE(m.failure.has_value());
      INFO(message(*m.failure));
      CHECK(exit_code(*m.failure) == 78);
      CHECK(contains(m.failure->what, first == DType::f32 ? "leaves: the checkpoint has f32, this job has bf16"
                                                          : "leaves: the checkpoint has bf16, this job has f32"));
    }
  }
}

}  // namespace elrun::test
