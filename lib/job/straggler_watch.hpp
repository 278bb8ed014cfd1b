#pragma once
/// \file StragglerWatch: which rank computes longer than the others, step after step. Core. All ranks hear the same own times, so all come to the
/// same. Called by the job's thread.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

struct Straggler {
  std::uint32_t rank = 0;
  std::uint32_t steps = 0;  ///< So many in a row,
  Duration lost{};          ///< and so much longer it computed in all of them than the median of the others would have.
  double times = 0;         ///< As long as that median, in the newest step.
};

/// A rank is named when, in each of at least `steps_min` steps in a row, a slot took it more than `share` longer than the median of the other
/// ranks, and the steps have lost at least `lost_min` to it. A step that is not told of (an audited one) ends no row. It is named again only after a step in which it was not so slow.
class StragglerWatch {
 public:
  static constexpr double share = 0.5;
  static constexpr std::uint32_t steps_min = 10;
  static constexpr Duration lost_min = 1s;

  /// Of the rank that comes next, in the order of ranks. One without slots computes nothing, and is left out.
  void hear(Duration own, std::size_t slots) { own_.push_back({own, static_cast<std::int64_t>(slots)}); }
  /// All ranks of a step were heard.
  [[nodiscard]] std::optional<Straggler> end_step() {
    const auto slowest = slowest_rank();
    const auto slow = slowest ? slowness(*slowest) : std::nullopt;
    own_.clear();
    if (!slow) {
      streak_.reset();
      named_ = false;
      return std::nullopt;
    }
    if (!streak_ || streak_->rank != slow->rank) streak_ = Straggler{.rank = slow->rank}, named_ = false;
    streak_->times = slow->times;
    streak_->lost += slow->lost;
    ++streak_->steps;
    if (named_ || streak_->steps < steps_min || streak_->lost < lost_min) return std::nullopt;
    named_ = true;
    return streak_;
  }
  /// Ranks are other ones.
  void begin_generation() { *this = {}; }

 private:
  struct Own {
    Duration own;
    std::int64_t slots;
    [[nodiscard]] Duration of_slot() const { return own / slots; }
  };
  [[nodiscard]] std::optional<std::uint32_t> slowest_rank() const {
    std::optional<std::uint32_t> slowest;
    for (std::uint32_t r = 0; r < own_.size(); ++r)
      if (own_[r].slots > 0 && (!slowest || own_[r].of_slot() > own_[*slowest].of_slot())) slowest = r;
    return slowest;
  }
  /// Nothing where it is no slower than that.
  [[nodiscard]] std::optional<Straggler> slowness(std::uint32_t rank) {
    others_.clear();
    for (std::uint32_t r = 0; r < own_.size(); ++r)
      if (r != rank && own_[r].slots > 0) others_.push_back(own_[r].of_slot());
    if (others_.empty()) return std::nullopt;
    const auto middle = others_.begin() + static_cast<std::ptrdiff_t>(others_.size() / 2);
    std::nth_element(others_.begin(), middle, others_.end());
    const Duration slot = own_[rank].of_slot(), median = std::max(*middle, Duration{1});
    const double times = static_cast<double>(slot.count()) / static_cast<double>(median.count());
    if (times <= 1 + share) return std::nullopt;
    return Straggler{.rank = rank, .lost = (slot - median) * own_[rank].slots, .times = times};
  }
  std::vector<Own> own_;  // by rank
  std::vector<Duration> others_;
  std::optional<Straggler> streak_;
  bool named_ = false;
};

}  // namespace elrun::inline v0
