#include <algorithm>
#include <set>

#include "lib/job/declare/sampler.hpp"
#include "tests/support/property.hpp"

namespace elrun::test {

TEST_CASE("an epoch's order is a permutation", "[job]") {
  for_all_seeds(300, [](Rng& rng) {
    const std::uint64_t count = 1 + rng.below(3000), seed = rng.next64(), epoch = rng.below(5);
    std::vector<bool> seen(count, false);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t s = permuted(seed, epoch, i, count);
      REQUIRE(s < count);
      REQUIRE_FALSE(seen[s]);
      seen[s] = true;
    }
  });
}

TEST_CASE("seeds and epochs give orders of their own", "[job]") {
  const auto order = [](std::uint64_t seed, std::uint64_t epoch) {
    std::vector<std::uint64_t> out;
    for (std::uint64_t i = 0; i < 50; ++i) out.push_back(permuted(seed, epoch, i, 50));
    return out;
  };
  std::set<std::vector<std::uint64_t>> orders;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch) orders.insert(order(seed, epoch));
  CHECK(orders.size() == 400);
}

TEST_CASE("a huge data set has places at both ends", "[job]") {
  const std::uint64_t count = ~std::uint64_t{0};
  CHECK(permuted(1, 0, 0, count) != permuted(1, 0, count - 1, count));
}

TEST_CASE("within an epoch every sample is in exactly one slot, and batches may span epochs", "[job]") {
  for_all_seeds(200, [](Rng& rng) {
    Plan plan;
    plan.micro_batch = 1 + rng.below(4);
    plan.global_batch = plan.micro_batch * (1 + rng.below(6));
    plan.samples = 1 + rng.below(100);
    plan.seed = rng.next64();
    const std::uint64_t epochs = 3, steps = (epochs * plan.samples + plan.global_batch - 1) / plan.global_batch;
    std::vector<std::uint64_t> stream, slot(plan.micro_batch);
    for (std::uint64_t step = 0; step < steps; ++step)
      for (std::uint32_t s = 0; s < plan.slots(); ++s) {
        samples_of_slot(plan, step, s, slot);
        stream.insert(stream.end(), slot.begin(), slot.end());
      }
    for (std::uint64_t e = 0; e < epochs; ++e) {
      const auto begin = stream.begin() + static_cast<std::ptrdiff_t>(e * plan.samples);
      std::vector<std::uint64_t> epoch(begin, begin + static_cast<std::ptrdiff_t>(plan.samples));
      std::sort(epoch.begin(), epoch.end());
      for (std::uint64_t i = 0; i < plan.samples; ++i) REQUIRE(epoch[i] == i);
    }
  });
}

TEST_CASE("a stream is read in its order, by ranges that step and slot tell", "[job]") {
  Plan plan{.global_batch = 6, .micro_batch = 3, .samples = endless, .steps = 1, .seed = 7};
  CHECK(plan.problems().empty());
  std::vector<std::uint64_t> slot(3);
  samples_of_slot(plan, 0, 0, slot);
  CHECK(slot == std::vector<std::uint64_t>{0, 1, 2});
  samples_of_slot(plan, (std::uint64_t{1} << 61) / 6, 1, slot);
  const std::uint64_t first = (std::uint64_t{1} << 61) / 6 * 6 + 3;
  CHECK(slot == std::vector<std::uint64_t>{first, first + 1, first + 2});
}

TEST_CASE("random numbers follow from seed, step, slot, operation and element", "[job]") {
  std::set<std::uint32_t> numbers;
  for (const std::uint64_t seed : {1u, 2u})
    for (const std::uint64_t step : {0u, 1u})
      for (std::uint32_t slot : {0u, 1u})
        for (std::uint32_t op : {0u, 1u})
          for (std::uint64_t i = 0; i < 4; ++i) numbers.insert(slot_stream(seed, step, slot).operation(op).bits(i));
  CHECK(numbers.size() == 64);
  CHECK(slot_stream(1, 2, 3).bits(4) == slot_stream(1, 2, 3).bits(4));
  CHECK(named_stream(1, "a").bits(0) != named_stream(1, "b").bits(0));
}

}  // namespace elrun::test
