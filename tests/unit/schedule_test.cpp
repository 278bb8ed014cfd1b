#include "lib/comm/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <elrun/philox.hpp>

#include "kernels/convert.hpp"
#include "lib/comm/fold.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("parts cover all elements once, in rank order, and differ by one at most", "[schedule]") {
  for (std::uint32_t world = 1; world <= 9; ++world) {
    for (std::uint64_t count = 0; count <= 40; ++count) {
      std::uint64_t at = 0;
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        const Range part = part_of(Rank{rank}, WorldSize{world}, count);
        REQUIRE(part.begin == at);
        REQUIRE(part.size() >= count / world);
        REQUIRE(part.size() <= count / world + 1);
        at = part.end;
      }
      REQUIRE(at == count);
    }
  }
}

TEST_CASE("every element is folded once, by the owner of its part, in blocks of bounded size", "[schedule]") {
  for (std::uint32_t world = 1; world <= 5; ++world) {
    for (std::uint64_t count = 0; count <= 30; ++count) {
      for (std::uint64_t block = 1; block <= 7; ++block) {
        const ReduceSchedule schedule{WorldSize{world}, count, block};
        std::vector<int> folded(count, 0);
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          const Range part = part_of(Rank{rank}, WorldSize{world}, count);
          for (std::uint64_t round = 0; round < schedule.rounds(); ++round) {
            const Range range = schedule.folded(Rank{rank}, round);
            REQUIRE(range.size() <= block);
            for (std::uint64_t i = range.begin; i < range.end; ++i) {
              REQUIRE((part.begin <= i && i < part.end));
              ++folded[i];
            }
          }
          REQUIRE(schedule.folded(Rank{rank}, schedule.rounds()).size() == 0);
        }
        REQUIRE(folded == std::vector<int>(count, 1));
      }
    }
  }
}

namespace {

template <class T>
std::vector<T> fold(const std::vector<std::vector<T>>& inputs, ReduceOp op) {
  std::vector<const std::byte*> pointers;
  for (const auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> out(inputs.front().size());
  fold_ranks(pointers, reinterpret_cast<std::byte*>(out.data()), out.size(), DTypeOf<T>::value, op);
  return out;
}

}  // namespace

TEST_CASE("ranks are folded in their order", "[schedule]") {
  const float big = 1e8f;  // (big + 1) - big is 0, (big - big) + 1 is 1
  CHECK(fold<float>({{big, big}, {1, -big}, {-big, 1}}, ReduceOp::sum) == std::vector<float>{0, 1});
}

TEST_CASE("folds keep their promises at the edges", "[schedule]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  SECTION("a NaN wins, wherever it stands") {
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      for (const float x : fold<float>({{nan, 1, 2}, {1, nan, 3}, {2, 2, nan}}, op)) CHECK(std::isnan(x));
    }
  }
  SECTION("sums of integers wrap") {
    CHECK(fold<std::int32_t>({{std::numeric_limits<std::int32_t>::max()}, {1}}, ReduceOp::sum).front() ==
          std::numeric_limits<std::int32_t>::min());
    CHECK(fold<std::uint8_t>({{200}, {100}}, ReduceOp::sum).front() == 44);
  }
  SECTION("bf16 is summed in float and rounded once") {
    const bf16 one = to_bf16(1.0f), small = to_bf16(1.0f / 256);  // 1 + 1/256 is a tie that rounds to 1 in bf16
    CHECK(to_float(fold<bf16>({{one}, {small}, {small}}, ReduceOp::sum).front()) == 1.0f + 2.0f / 256);
  }
  SECTION("the average divides once, at the end") {
    CHECK(fold<double>({{1}, {2}, {6}}, ReduceOp::avg).front() == 3.0);
    CHECK(!check_reduction(DType::i64, ReduceOp::avg).ok());
    CHECK(check_reduction(DType::bf16, ReduceOp::avg).ok());
  }
  SECTION("many elements, with the output in place of an input") {
    std::vector<std::vector<std::int64_t>> inputs(3, std::vector<std::int64_t>(5000));
    for (std::size_t i = 0; i < 5000; ++i)
      for (std::size_t r = 0; r < 3; ++r) inputs[r][i] = static_cast<std::int64_t>((i + 1) * (r + 1));
    std::vector<const std::byte*> pointers;
    for (auto& input : inputs) pointers.push_back(reinterpret_cast<const std::byte*>(input.data()));
    fold_ranks(pointers, reinterpret_cast<std::byte*>(inputs[1].data()), 5000, DType::i64, ReduceOp::sum);
    for (std::size_t i = 0; i < 5000; ++i) REQUIRE(inputs[1][i] == static_cast<std::int64_t>(6 * (i + 1)));
  }
}

namespace {

/// Any bytes without the second highest bit are finite numbers of any type.
void check_each_alone(DType type, ReduceOp op, std::size_t count, std::size_t apart) {
  const std::size_t width = size_of(type), size = count * width;
  Rng rng{count * 31 + width};
  std::vector<std::vector<std::byte>> inputs(3, std::vector<std::byte>(size + apart));
  std::vector<const std::byte*> pointers(3), alone(3);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::byte& x : inputs[r]) x = static_cast<std::byte>(rng.next() & 0xbf);
    pointers[r] = inputs[r].data() + apart;
  }
  std::vector<std::byte> out(size + apart), each(size);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t r = 0; r < 3; ++r) alone[r] = pointers[r] + i * width;
    fold_ranks(alone, each.data() + i * width, 1, type, op);
  }
  fold_ranks(pointers, out.data() + apart, count, type, op);
  REQUIRE(std::ranges::equal(std::span{out}.subspan(apart), each));
  fold_ranks(pointers, inputs[2].data() + apart, count, type, op);  // in place
  REQUIRE(std::ranges::equal(std::span{inputs[2]}.subspan(apart), each));
}

}  // namespace

TEST_CASE("an element is folded alike alone and among many, wherever it lies", "[schedule]") {
  for (const DType type : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u8, DType::u32, DType::u64}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::avg}) {
      if (!check_reduction(type, op).ok()) continue;
      for (const std::size_t bytes : {0, 8, 56, 64, 72, 4096, 4 * 4096 - 8, 4 * 4096, 9 * 4096 + 136})
        check_each_alone(type, op, bytes / size_of(type), 0);
      check_each_alone(type, op, 5 * 4096 / size_of(type) + 1, 3);
    }
  }
}
