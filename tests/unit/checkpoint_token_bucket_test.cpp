// A bound on bytes per second.

#include "checkpoint/storage/token_bucket.hpp"

#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/property.hpp"

using namespace elrun;
using namespace elrun::test;

TEST_CASE("bytes are paid one after the other at the rate; without a rate they cost nothing", "[token_bucket]") {
  const Instant now{Duration{1'000'000'000'000}};
  TokenBucket bucket;
  CHECK(bucket.take(1u << 30, now) == Duration{0});
  bucket.set_rate(1_MiB);
  CHECK(bucket.take(1u << 20, now) == 1s - TokenBucket::saved_up_max);
  CHECK(bucket.take(1u << 20, now) == 2s - TokenBucket::saved_up_max);           // of another rank: behind the first
  CHECK(bucket.take(1u << 19, now + 10s) == 500ms - TokenBucket::saved_up_max);  // what was not used is not saved up for long
  bucket.forget(now + 10s);
  CHECK(bucket.take(1u << 20, now + 10s) == 1s);
  bucket.set_rate({});
  CHECK(bucket.take(1u << 30, now + 10s) == Duration{0});
}

TEST_CASE("a token bucket never exceeds its rate in any interval, and a caller that always has bytes gets the whole rate",
          "[token_bucket]") {
  for_all_seeds(200, [](Rng& rng) {
    const std::uint64_t rate = 1000 + rng.below(1'000'000'000), each_max = 1 + rate / (1 + rng.below(200));
    TokenBucket bucket;
    bucket.set_rate(Bytes{rate});
    struct Used {
      Instant at;
      std::uint64_t bytes;
    };
    std::vector<Used> used;
    Instant now{Duration{5'000'000'000}};
    const bool is_eager = rng.chance(0.5);
    const Instant begun = now;
    std::uint64_t all = 0;
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t bytes = 1 + rng.below(each_max);
      const Duration wait = bucket.take(bytes, now);
      used.push_back({now + wait, bytes});
      all += bytes;
      now += wait;
      if (!is_eager && rng.chance(0.3)) now += Duration{static_cast<std::int64_t>(rng.below(3'000'000'000))};
    }
    for (std::size_t first = 0; first < used.size(); ++first) {
      std::uint64_t sum = 0;
      for (std::size_t last = first; last < used.size(); ++last) {
        sum += used[last].bytes;
        // The first of a window may have been paid before it.
        const double allowed =
            static_cast<double>(rate) * std::chrono::duration<double>(used[last].at - used[first].at + TokenBucket::saved_up_max).count() +
            static_cast<double>(used[first].bytes) + 1;
        if (static_cast<double>(sum) > allowed)
          FAIL("bytes " << sum << " of " << allowed << " allowed, in window " << first << " to " << last);
      }
    }
    if (is_eager) {
      const double took = std::chrono::duration<double>(now - begun).count() + 0.1;
      CHECK(static_cast<double>(all) >= 0.99 * static_cast<double>(rate) * took);
    }
  });
}
