#pragma once
/// \file TimesSpent: where this rank's time goes between its words to the agent. Core: instants are arguments. Called by the job's thread.
///
/// A rank's own time is what it does not spend in exchanges. Exchanges keep ranks in step, so the ranks' own times of a step begin together, and who
/// has the longest was waited for. Where the communication thread runs rounds, or a device's arrays travel by NCCL, waits look like own time.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include <elrun/session.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0 {

class TimesSpent {
 public:
  static constexpr Duration own_max = 24h;  ///< Of a step; the sum of 2^16 ranks' fits.
  /// Nothing of a generation that is over is said in the next one.
  void begin_generation() { *this = {}; }
  void connected(Instant begun, Instant now) {
    times_.connect += now - begun;
    connected_ = now;
  }
  /// All members have the state. `exchanged`, here and below: so long this rank has been in exchanges, since whenever.
  void ready(Instant now, Duration exchanged) {
    if (connected_) times_.restore += now - *std::exchange(connected_, std::nullopt);
    together(now, exchanged);
  }
  /// Here all ranks go on together: own time begins anew. An evaluation's slots are no step's.
  void together(Instant now, Duration exchanged) { own_since_ = now, exchanged_before_ = exchanged; }
  void saved(Instant begun, Instant now, Duration exchanged) {
    times_.saves += now - begun;
    together(now, exchanged);
  }
  void begin_step(Instant now) { step_ = now; }
  /// This rank's own time, since all were together last.
  [[nodiscard]] Duration own(Instant now, Duration exchanged) const {
    return std::clamp<Duration>(now - own_since_ - (exchanged - exchanged_before_), Duration{0}, own_max);
  }
  /// The own time of each rank in this step, as they say; in the order of ranks.
  void hear_own(Duration of_a_rank) {
    const Duration own = std::clamp<Duration>(of_a_rank, Duration{0}, own_max);
    if (ranks_ == 0 || own > longest_) {
      second_ = longest_, longest_ = own;
      last_ = static_cast<std::uint32_t>(ranks_);
    } else {
      second_ = std::max(second_, own);
    }
    sum_ += own;
    ++ranks_;
  }
  /// A step is decided: what to say of it.
  [[nodiscard]] StepTimes decided(Instant now, Duration exchanged) {
    StepTimes said = std::exchange(times_, {});
    if (step_) said.step = now - *std::exchange(step_, std::nullopt);
    if (ranks_ > 0) said.waiting = longest_ - sum_ / ranks_;
    if (ranks_ > 1) said.behind = longest_ - second_, said.last_rank = last_;
    longest_ = second_ = sum_ = {};
    ranks_ = 0;
    together(now, exchanged);
    return said;
  }
  /// The end of the job: saves after its last step.
  [[nodiscard]] StepTimes left() { return {.saves = std::exchange(times_.saves, {})}; }

 private:
  StepTimes times_;
  std::optional<Instant> step_, connected_;
  Instant own_since_{};
  Duration exchanged_before_{}, longest_{}, second_{}, sum_{};
  std::uint32_t last_ = 0;  // whose is the longest
  std::int64_t ranks_ = 0;
};

}  // namespace elrun::inline v0
