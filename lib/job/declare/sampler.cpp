#include "lib/job/declare/sampler.hpp"

#include <bit>
#include <numeric>

#include "lib/base/assert.hpp"
#include "lib/base/bytes.hpp"
#include "lib/base/digest.hpp"

namespace elrun::inline v0 {
namespace {

constexpr int feistel_rounds = 6;  // four are a pseudo-random permutation for large domains; small ones get two more

/// A key that no other use of the seed shares: `domain` says what for.
std::uint64_t key_of(std::string_view domain, std::uint64_t seed, std::uint64_t number, std::string_view name = {}) {
  ByteWriter w;
  w.put_text(domain);
  w.put(seed);
  w.put(number);
  w.put_text(name);
  const Sha256 digest = sha256(w.bytes());
  return ByteReader{digest}.get<std::uint64_t>();
}

constexpr Philox4x32::Key split(std::uint64_t key) { return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}; }

}  // namespace

std::uint64_t permuted(std::uint64_t seed, std::uint64_t epoch, std::uint64_t place, std::uint64_t count) {
  ELRUN_ASSERT(place < count);
  const int half = std::max(1, (static_cast<int>(std::bit_width(count - 1)) + 1) / 2);  // at most 32
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  const Philox4x32::Key key = split(seed);
  do {
    std::uint64_t left = place >> half, right = place & mask;
    for (std::uint32_t round = 0; round < feistel_rounds; ++round) {
      const auto noise = Philox4x32::block(
          {static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)}, key);
      left = std::exchange(right, (left ^ noise[0]) & mask);
    }
    place = (left << half) | right;
  } while (place >= count);
  return place;
}

void samples_of_slot(const Plan& plan, std::uint64_t step, std::uint32_t slot, std::span<std::uint64_t> out) {
  std::uint64_t position = step * plan.global_batch + slot * plan.micro_batch;
  if (plan.samples == endless) return std::iota(out.begin(), out.end(), position);
  const std::uint64_t seed = key_of("elrun.data-order", plan.seed, 0);
  for (std::uint64_t& sample : out) {
    sample = permuted(seed, position / plan.samples, position % plan.samples, plan.samples);
    ++position;
  }
}

RandomStream slot_stream(std::uint64_t seed, std::uint64_t step, std::uint32_t slot) { return {key_of("elrun.slot", seed, step), slot, 0}; }

RandomStream named_stream(std::uint64_t seed, std::string_view name) { return {key_of("elrun.name", seed, 0, name), 0, 0}; }

}  // namespace elrun::inline v0
