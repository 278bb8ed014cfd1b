#pragma once
/// \file For cases of one part of a job: a small model, and worlds in threads without a Job.

#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "lib/job/declare/layout.hpp"
#include "lib/job/declare/plan.hpp"
#include "lib/job/state/shared_buffers.hpp"
#include "tests/support/forwarding_memory.hpp"
#include "tests/unit/job_world.hpp"

namespace elrun::test {

/// Two units: one with a frozen tensor and with padding, and one of several granules.
inline std::vector<UnitSpec> two_units() {
  return {{"a", {{"w", DType::f32, {5000}, {}}, {"table", DType::f32, {300}, {.frozen = true}}}},
          {"b", {{"w", DType::f32, {7 * 1024 + 9}, {}}}}};
}

inline const Log& quiet() {
  static const Log log{"test", [](Level, std::string_view) {}};
  return log;
}
inline SharedBuffers private_memory(Memory& memory = host_memory()) { return SharedBuffers{{}, quiet(), memory}; }
inline ShardMap one_node(Sharding sharding, std::uint32_t world) { return shard_map(sharding, std::vector<std::uint32_t>(world)); }

/// Calls `part` in a thread for each rank, with a world whose exchanges are in memory.
inline void in_world(std::uint32_t size, const std::function<void(JobWorld&, std::uint32_t rank)>& part, bool elastic = false) {
  MemoryNet net{size};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      Place place{};
      place.membership = {{1, {}}, Rank{rank}, WorldSize{size}};
      place.elastic = elastic;
      TestSession session{place, nullptr};
      JobWorld world{session, [&](Session&) -> Result<std::unique_ptr<Peers>> {
                       return std::unique_ptr<Peers>{std::make_unique<MemoryPeers>(net, rank, std::nullopt)};
                     }};
      if (world.join().ok()) part(world, rank);
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace elrun::test
