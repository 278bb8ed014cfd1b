#pragma once
/// \file StragglerWatch: which rank computes longer than the others, step after step. Core. All ranks hear the same own times, so all come to the
/// same. Called by the job's thread.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

struct Straggler {
  std::uint32_t rank = 0;
  std::uint32_t steps = 0;  ///< So many in a row it was slow in,
  Duration lost{};          ///< and so much longer it computed in all of them than the median of the others would have.
  double times = 0;         ///< As long as that median, in the newest step.
};

/// A rank is slow in a step in which its slots took it longer than the median of the other ranks: more than `share` longer; or more than
/// `late_share` longer, and more than `late_min` in all slots of the step. It is named after a row of slow steps that have lost at least `lost_min`
/// to it: `steps_min` of the first kind, or `late_steps_min` of either. A step that is not told of (an audited one) ends no row. It is named again
/// only after a step in which it was not slow.
///
/// Each rank has its own row, so up to half of the ranks are named. Where more are slow, they are the median, and nobody can say which of the two
/// kinds of ranks is as it should be.
class StragglerWatch {
 public:
  static constexpr double share = 0.5;
  static constexpr std::uint32_t steps_min = 10;
  static constexpr double late_share = 0.15;
  static constexpr Duration late_min = 100ms;
  static constexpr std::uint32_t late_steps_min = 20;  // ranks that differ by chance alone often differ by so little
  static constexpr Duration lost_min = 1s;

  /// Of the rank that comes next, in the order of ranks. One without slots computes nothing, and is left out.
  void hear(Duration own, std::size_t slots) { own_.push_back({own, static_cast<std::int64_t>(slots)}); }
  /// All ranks of a step were heard. Those that are named now, in the order of ranks.
  [[nodiscard]] std::vector<Straggler> end_step() {
    rows_.resize(own_.size());
    const auto median = median_of_others();
    std::vector<Straggler> named;
    for (std::uint32_t r = 0; r < own_.size(); ++r)
      if (rows_[r].add(median ? own_[r] : Own{}, median.value_or(Duration{1})))
        named.push_back({.rank = r, .steps = rows_[r].steps, .lost = rows_[r].lost, .times = rows_[r].times});
    own_.clear();
    return named;
  }
  /// Ranks are other ones.
  void begin_generation() { *this = {}; }

 private:
  struct Own {
    Duration own{};
    std::int64_t slots = 0;
    [[nodiscard]] Duration of_slot() const { return own / slots; }
  };
  /// Slow steps of one rank, one after the other.
  struct Row {
    std::uint32_t steps = 0, much = 0;  ///< Slow ones; slow by `share` ones, up to the newest.
    Duration lost{};
    double times = 0;
    bool named = false;
    /// True: it is named now.
    bool add(const Own& own, Duration median) {
      if (own.slots == 0) return *this = {}, false;
      times = static_cast<double>(own.of_slot().count()) / static_cast<double>(median.count());
      const Duration late = (own.of_slot() - median) * own.slots;
      const bool is_much = times > 1 + share;
      if (!is_much && (times <= 1 + late_share || late <= late_min)) return *this = {}, false;
      ++steps;
      much = is_much ? much + 1 : 0;
      lost += late;
      if (named || lost < lost_min || (much < steps_min && steps < late_steps_min)) return false;
      return named = true;
    }
  };
  /// For each rank that is slower than it, the median of the ranks beside that one (of two in the middle the longer). None: fewer than two compute.
  [[nodiscard]] std::optional<Duration> median_of_others() {
    of_slot_.clear();
    for (const Own& own : own_)
      if (own.slots > 0) of_slot_.push_back(own.of_slot());
    if (of_slot_.size() < 2) return std::nullopt;
    const auto middle = of_slot_.begin() + static_cast<std::ptrdiff_t>((of_slot_.size() - 1) / 2);
    std::nth_element(of_slot_.begin(), middle, of_slot_.end());
    return std::max(*middle, Duration{1});
  }
  std::vector<Own> own_;  // by rank
  std::vector<Row> rows_;
  std::vector<Duration> of_slot_;
};

}  // namespace elrun::inline v0
