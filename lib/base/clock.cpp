#include "lib/base/clock.hpp"

#include <ctime>

#include "lib/base/timeouts.hpp"

namespace elrun::inline v0 {
namespace {
std::int64_t read(clockid_t id) {
  timespec t{};
  clock_gettime(id, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
}  // namespace

Instant SteadyClock::now() const { return Instant{Duration{read(CLOCK_MONOTONIC)}}; }
std::int64_t SteadyClock::wall_ns() const { return read(CLOCK_REALTIME); }

Deadline deadline_in(Duration wait) { return Deadline::after(SteadyClock{}.now(), wait); }

std::vector<std::string> Timeouts::problems() const {
  std::vector<std::string> found;
  const auto rule = [&](bool holds, const char* sentence) {
    if (!holds) found.emplace_back(sentence);
  };
  rule(heartbeat > Duration{0}, "the heartbeat interval must be above 0");
  rule(heartbeat_limit >= 2 * heartbeat, "the heartbeat limit must be at least twice the heartbeat interval");
  rule(reconnect_grace < heartbeat_limit, "the reconnect grace must be below the heartbeat limit");
  rule(revocation < join, "the revocation deadline must be below the join deadline");
  rule(drain < stop_grace, "the drain time must be below the stop grace");
  rule(connect <= collective, "the connect deadline must not exceed the collective deadline");
  rule(reconnect_grace <= recovery && recovery < join,
       "the recovery window must be at least the reconnect grace and below the join deadline");
  rule(reconnect_grace < join, "the reconnect grace must be below the join deadline");
  rule(newcomer > Duration{0}, "a newcomer's time must be above zero");
  rule(heartbeat_limit < coordinator_grace, "the coordinator grace must be above the heartbeat limit");
  rule(lease > Duration{0}, "the lease must be above 0");
  rule(lease < coordinator_grace, "the lease must be below the coordinator grace");
  return found;
}

}  // namespace elrun::inline v0
