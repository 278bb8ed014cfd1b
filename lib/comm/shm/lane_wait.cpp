#include "lib/comm/shm/lane_wait.hpp"

#include <sched.h>

#include <optional>
#include <utility>

#include <fmt/format.h>

#include "lib/link/roll_call.hpp"

namespace elrun::inline v0 {
namespace {

constexpr int spins_alone = 2000;  // looks before sleeping, where every rank can have a core
constexpr int yields_crowded = 4;  // and where they cannot: the peer may need this very core

int cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

Failure generation_is_over() { return {.code = Code::generation_over, .remedy = Remedy::rejoin, .what = "the generation is over"}; }

LaneWait::LaneWait(RegionHeader& header, Doorbell doorbell, std::size_t ranks) : header_{header}, doorbell_{std::move(doorbell)} {
  const bool alone = cores() >= static_cast<int>(ranks);
  spins_ = alone ? spins_alone : 0;
  yields_ = alone ? 0 : yields_crowded;
}

void LaneWait::end() noexcept {
  over_.store(true);
  doorbell_.ring();
}

Failure LaneWait::peer_gone(Rank peer) {
  return {.code = Code::peer_lost, .remedy = Remedy::rejoin, .what = fmt::format("rank {} is gone", peer.value()), .peer = peer};
}

/// Nobody is missing: bytes came until now.
Failure LaneWait::late(Duration limit) {
  return {.code = Code::deadline_passed,
          .remedy = Remedy::abort_group,
          .what = fmt::format("a collective call was not over within {} ms, though its bytes were still coming", limit / 1ms)};
}

Failure LaneWait::late(Duration limit, std::vector<Rank> missing) {
  std::ranges::sort(missing);
  return {.code = Code::deadline_passed,
          .remedy = Remedy::abort_group,
          .what = fmt::format("a collective call was not over within {} ms; missing: {}", limit / 1ms, list_ranks(missing)),
          .peer = missing.empty() ? std::nullopt : std::optional{missing.front()}};
}

}  // namespace elrun::inline v0
