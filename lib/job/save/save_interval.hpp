#pragma once
/// \file SaveInterval: after which steps a job saves: by their number, by time, by what saves cost. Core: instants are arguments.
///
/// Clocks differ between ranks, so one rank's answer has to be everybody's: the leader's travels with its vote for a step (votes.hpp), in an exchange that is made anyway. It cannot
/// come to different ends: who comes to the border after a step has heard all votes for it, or state and decision from a member of a new generation. The leader's vote has the same bytes for
/// all, and what it asked for counts at this one border of this one generation. Who did not hear it is in a generation that is over, as are all the others.
///
/// What a save costs is what training loses by it: how long it was stopped, and by how much the steps during which the state was copied or written took longer than the median of
/// those before them.

#include <cstdint>
#include <deque>
#include <optional>

#include <elrun/units.hpp>

namespace elrun::inline v0 {

class SaveInterval {
 public:
  /// A save is due when one of `steps` and `time` says so; when neither is given, as soon as `budget` allows. `budget` puts off any save.
  struct Wish {
    std::uint64_t steps = 0;  ///< After each multiple of it; 0: not by steps.
    Duration time{0};         ///< Since the last save began; 0: not by time.
    double budget = 0;        ///< So much of the time may saves cost, from the last one on: below 1; 0: any.
  };
  SaveInterval() = default;
  explicit SaveInterval(const Wish& wish) : wish_{wish} {}

  /// Each rank knows by itself: it is the number of the step alone.
  [[nodiscard]] bool is_by_steps_alone() const { return wish_.time == Duration{0} && wish_.budget == 0; }

  /// A generation begins, with a state that was saved before or with a later one.
  void begin(Instant now);
  /// The state is that of a checkpoint.
  void restored(Instant now) { last_save_ = now; }
  /// A save was begun, or blocked: training stood still from `begun` to `now`.
  void saved(Instant begun, Instant now);
  /// At the vote for a step, `steps` with it: whether to save after it. `is_writing`: the last save is still on its way to the storage. Then time asks for none, and the number of the step does:
  /// such a save is left out, and counted.
  [[nodiscard]] bool vote(std::uint64_t steps, Instant now, bool is_writing);

  /// The mean cost of the last saves; nothing before the first.
  [[nodiscard]] std::optional<Duration> cost() const;

 private:
  void measure(Duration step, bool is_writing);
  [[nodiscard]] Duration usual_step() const;
  [[nodiscard]] bool is_by_steps(std::uint64_t steps) const;
  [[nodiscard]] bool is_wished(std::uint64_t steps, Instant now) const;
  [[nodiscard]] bool is_affordable(Instant now) const;

  static constexpr std::size_t steps_kept = 16, steps_before_first = 8, costs_kept = 4;
  Wish wish_;
  std::optional<Instant> last_vote_;
  std::optional<Instant> last_save_;  // when it began; or the beginning
  Duration stood_still_{};            // since the last vote
  bool is_saving_ = false;            // since the last vote, some of the time
  std::deque<Duration> steps_;        // without a save, the newest last
  std::deque<Duration> costs_;        // of the last saves, the newest last, which may still grow
};

}  // namespace elrun::inline v0
