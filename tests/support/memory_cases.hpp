#pragma once
/// \file What a Memory does, wherever it lies: the same cases for the host's and for a device's.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <elrun/philox.hpp>

#include "kernels/convert.hpp"
#include "kernels/fold.hpp"
#include "kernels/state_hash.hpp"
#include "lib/device/memory.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {

using ByteList = std::vector<std::byte>;

inline ByteList bytes_from(std::uint64_t seed, std::size_t count) {
  Rng rng{seed};
  ByteList out(count);
  for (std::byte& b : out) b = static_cast<std::byte>(rng.below(256));
  return out;
}

/// A run of it, for a scope.
class InMemory {
 public:
  InMemory(Memory& memory, std::size_t count) : memory_{memory}, at_{static_cast<std::byte*>(memory.allocate(count))}, count_{count} {}
  ~InMemory() { memory_.free(at_); }
  InMemory(const InMemory&) = delete;
  InMemory& operator=(const InMemory&) = delete;
  [[nodiscard]] std::span<std::byte> run() const { return {at_, count_}; }
  [[nodiscard]] std::span<std::byte> run(std::size_t begin, std::size_t count) const { return run().subspan(begin, count); }
  [[nodiscard]] ByteList read(std::size_t begin, std::size_t count) const {
    ByteList out(count);
    memory_.read(run(begin, count), out);
    return out;
  }

 private:
  Memory& memory_;
  std::byte* at_;
  std::size_t count_;
};

/// `large`: more than any staging of this memory holds.
inline void check_memory(Memory& memory, std::size_t large) {
  SECTION("what is allocated is zeros, on a border of 256 bytes") {
    for (const std::size_t count : {std::size_t{1}, std::size_t{5000}, large}) {
      const InMemory made{memory, count};
      CHECK(reinterpret_cast<std::uintptr_t>(made.run().data()) % 256 == 0);
      CHECK((made.read(0, count) == ByteList(count)));
    }
  }
  SECTION("what is written is read, at any place and of any size") {
    const InMemory made{memory, large + 100};
    std::uint64_t seed = 1;
    for (const std::size_t begin : {0u, 1u, 63u})
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4096}, large}) {
        ByteList given = bytes_from(++seed, count);
        memory.write(given, made.run(begin, count));
        const ByteList kept = std::exchange(given, ByteList(count));  // `write` is done with it
        CHECK((made.read(begin, count) == kept));
      }
  }
  SECTION("a read beside the stream sees what is done") {
    const InMemory made{memory, large + 100}, other{memory, large};
    const ByteList given = bytes_from(4, large);
    memory.write(given, made.run(63, large));
    (void)made.read(0, 1);  // it is done
    memory.fill_with_zeros(other.run());
    ByteList seen(large);
    memory.read_beside(made.run(63, large), seen);
    CHECK((seen == given));
  }
  SECTION("writes and reads of many runs see each other in their order") {
    const InMemory made{memory, 3 * large};
    ByteList expected(3 * large);
    Rng rng{7};
    for (int i = 0; i < 12; ++i) {
      const std::size_t begin = rng.below(2 * large), count = rng.below(large);
      const ByteList given = bytes_from(100 + static_cast<std::uint64_t>(i), count);
      memory.write(given, made.run(begin, count));
      std::ranges::copy(given, expected.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    CHECK((made.read(0, 3 * large) == expected));
  }
  SECTION("copies and fills are of the run that they are given") {
    const InMemory made{memory, 10'000};
    const ByteList given = bytes_from(3, 3000);
    memory.write(given, made.run(1001, 3000));
    memory.copy(made.run(1001, 3000), made.run(5003, 3000));
    memory.fill_with_zeros(made.run(1001, 3000));
    memory.copy({}, {});
    memory.fill_with_zeros({});
    CHECK((made.read(5003, 3000) == given));
    CHECK((made.read(5000, 3) == ByteList(3)));
    CHECK((made.read(8003, 100) == ByteList(100)));
    CHECK((made.read(0, 5000) == ByteList(5000)));
  }
  SECTION("the hash of a run is that of its bytes") {
    const InMemory made{memory, 9000};
    const ByteList given = bytes_from(5, 9000);
    memory.write(given, made.run());
    for (const std::size_t count : {0u, 1u, 8u, 4099u, 8992u}) {
      const std::span<const std::byte> part = std::span{given}.subspan(8, count);
      CHECK(memory.hash(made.run(8, count), 17, salt_of("exp_avg")) == mix_sum(part, 17, salt_of("exp_avg")));
    }
    memory.fill_with_zeros(made.run(16, 8));
    CHECK(memory.hash(made.run(), 0, 0) != mix_sum(given, 0, 0));
  }
  SECTION("floats are rounded to bf16 where they lie, packed into their first half or elsewhere, widened and added") {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1024}, large / 4 + 3}) {
      const ByteList given = bytes_from(11 + count, count * sizeof(float));  // all kinds of numbers, and of those that are none
      std::vector<float> values(count), rounded(count);
      if (count > 0) std::memcpy(values.data(), given.data(), given.size());
      std::vector<bf16> halves(count);
      to_bf16(values, halves);
      to_float(halves, rounded);
      const auto bytes_of = [](const auto& list) {
        const auto bytes = std::as_bytes(std::span{list});
        return ByteList{bytes.begin(), bytes.end()};
      };
      const InMemory made{memory, 3 * count * sizeof(float) + 1};
      const auto floats = [&](std::size_t part) { return std::span{reinterpret_cast<float*>(made.run().data()) + part * count, count}; };
      memory.write(given, made.run(0, given.size()));
      memory.copy(std::as_bytes(floats(0)), std::as_writable_bytes(floats(1)));
      memory.to_bf16(floats(0), {reinterpret_cast<bf16*>(floats(2).data()), count});
      CHECK((made.read(2 * count * sizeof(float), count * sizeof(bf16)) == bytes_of(halves)));
      memory.round_to_bf16(floats(0));
      CHECK((made.read(0, count * sizeof(float)) == bytes_of(rounded)));
      memory.pack_to_bf16(floats(1));
      CHECK((made.read(count * sizeof(float), count * sizeof(bf16)) == bytes_of(halves)));
      const std::span<const bf16> packed{reinterpret_cast<const bf16*>(floats(1).data()), count};
      memory.to_float(packed, floats(2));
      CHECK((made.read(2 * count * sizeof(float), count * sizeof(float)) == bytes_of(rounded)));
      add_into(rounded, halves);
      memory.add_into(floats(0), packed);
      CHECK((made.read(0, count * sizeof(float)) == bytes_of(rounded)));
    }
  }
  SECTION("a reservation that stays is zeros once it is held") {
    const std::size_t bytes = 3 * memory.page_bytes();
    auto* const at = static_cast<std::byte*>(memory.reserve(bytes, Memory::Paging::stays));
    const std::span run{at, bytes};
    memory.hold(run);
    ByteList seen(bytes, std::byte{1});
    memory.read(run, seen);
    CHECK((seen == ByteList(bytes)));
    const ByteList given = bytes_from(9, bytes);
    memory.write(given, run);
    memory.hold(run);  // it is held already
    memory.read(run, seen);
    CHECK((seen == given));
    memory.unreserve(at, bytes);
  }
}

}  // namespace elrun::test
