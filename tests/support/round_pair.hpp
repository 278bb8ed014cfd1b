#pragma once
/// \file What the tests of the round's subjects share: a world of two nodes that runs, and options.

#include <fmt/format.h>

#include "rendezvous/round/assign.hpp"
#include "tests/support/round_bench.hpp"

namespace elrun::test {

constexpr RoundOptions two{.nodes_min = 2, .nodes_max = 2};
constexpr Duration options_last_call = RoundOptions{}.last_call;
constexpr RoundOptions one_to_three{.nodes_min = 1, .nodes_max = 3};

inline WorkerFailed failure(const Generation& generation, bool is_job = false, std::int32_t code = 3) {
  return {generation, 1, code, "exit code 3", is_job, Duration{0}, {}};
}

/// Of a fresh coordinator, as it comes up while the world of another one still runs.
inline RoundSetup fresh_setup() {
  RoundSetup setup = bench_setup();
  setup.lineage = {{0x3333, 0x4444}};
  return setup;
}

/// A world of "a" and "b" that runs, for rules about what may happen to it.
struct Pair : RoundBench {
  StreamNumber a, b;
  explicit Pair(RoundOptions round_options = two, RoundSetup setup = bench_setup())
      : RoundBench{round_options, std::move(setup)}, a{join("a")}, b{join("b")} {
    pass(options.last_call);
    REQUIRE(world(a) == "a b");
    REQUIRE(world(b) == "a b");
  }
};

}  // namespace elrun::test
