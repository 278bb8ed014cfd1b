#pragma once
/// \file Deadlines: until when this node waits for what, in one table. Pure.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0::launcher {

/// What is waited for. What happens when the time is over is in `Supervisor::on_tick`, one line each.
enum class Wait : std::uint8_t {
  join,           ///< A coordinator speaks: no generation has begun here yet.
  look_again,     ///< Another node comes. Then the coordinator's name is resolved again.
  coordinator,    ///< The coordinator comes back.
  kill,           ///< Workers that were asked to end do so.
  acknowledge,    ///< Workers that stay acknowledge that their generation is over.
  broken_line,    ///< A report says what a lost peer died of.
  verdict,        ///< A coordinator comes back to hear that the job is done.
  end_hung,       ///< Stacks of hung workers are being taken.
  leave,          ///< The job saves a checkpoint before this node leaves.
  tell_starting,  ///< All workers join the world. Then the coordinator is told who has not.
  successors,     ///< Successors of dead workers are ready. Then the node joins the next world, with or without them.
  prepare,        ///< Workers that start before the node has a place are ready. Then those that are not are killed.
};
constexpr std::size_t wait_kinds = 12;

/// The rules of each wait, in the order of `Wait`.
struct WaitRule {
  Wait wait;
  /// When it is over, another process is blamed for silence. After a stall of this agent it lasts longer: messages that came meanwhile are
  /// still to be read.
  bool blames_others = false;
  /// Others wait for it, so that a late Tick shows a stall of this agent. A mere report may be late.
  bool is_awaited = true;
};
constexpr std::array<WaitRule, wait_kinds> wait_rules{{
    {.wait = Wait::join, .blames_others = true},
    {.wait = Wait::look_again},
    {.wait = Wait::coordinator, .blames_others = true},
    {.wait = Wait::kill},
    {.wait = Wait::acknowledge, .blames_others = true},
    {.wait = Wait::broken_line, .blames_others = true},
    {.wait = Wait::verdict},
    {.wait = Wait::end_hung},
    {.wait = Wait::leave},
    {.wait = Wait::tell_starting, .is_awaited = false},
    {.wait = Wait::successors},
    {.wait = Wait::prepare},
}};

/// At most one deadline for each kind of wait. Those of a single worker are the worker's (`Worker`), and those of hangs are
/// `HangWatch`'s.
class Deadlines {
 public:
  void set(Wait wait, Instant at) { slot(wait) = at; }
  void clear(Wait wait) { slot(wait).reset(); }
  [[nodiscard]] bool is_set(Wait wait) const { return at(wait).has_value(); }
  [[nodiscard]] const std::optional<Instant>& at(Wait wait) const { return at_[static_cast<std::size_t>(wait)]; }
  /// True once the time is over; the wait is over with that.
  [[nodiscard]] bool take(Wait wait, Instant now);
  /// The earliest of all, or of those that others wait for.
  [[nodiscard]] std::optional<Instant> next(bool awaited_only) const;
  /// This agent did not run for `stalled`. Waits that blame others last so much longer, and end no earlier than `not_before`.
  void excuse(Duration stalled, Instant not_before);

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::optional<Instant>& slot(Wait wait) { return at_[static_cast<std::size_t>(wait)]; }
  std::array<std::optional<Instant>, wait_kinds> at_;
};

/// Stall compensation: whether this agent itself was stopped (frozen, swapped out). No other process is blamed for that time.
class StallCompensation {
 public:
  /// An event came at `now`; `last_event` was the one before, and by `wake` this agent should have run. For how long it was
  /// stalled; nothing when it was not, or when it is always a little late: then it blames others all the same.
  [[nodiscard]] std::optional<Duration> stalled(std::optional<Instant> wake, Instant last_event, Instant now);
  static constexpr Duration grace = std::chrono::seconds{1};  ///< Then there is at least so much time to read what was said meanwhile.

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::optional<Instant> last_;  // when it was compensated for
};

}  // namespace elrun::inline v0::launcher
