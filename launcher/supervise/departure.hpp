#pragma once
/// \file Departure: this node was asked by a signal, or by a notice that it will be taken away, to end. Prepare, leave, kill: which of them comes next. Pure.

#include <optional>
#include <string>
#include <utility>

#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0::launcher {

/// What a signal that asks this node to end means.
enum class Departing {
  prepare,         ///< The Job saves a checkpoint first, and the node leaves after that.
  leave,           ///< The workers get the signal, and SIGKILL when the grace is over.
  leave_and_kill,  ///< It came again while the Job was saving: the workers are killed.
  kill,            ///< It came again while the workers were ending: they are killed.
  goes_on,         ///< The node is leaving already, and this changes nothing.
};

/// The grace begins with the first signal, and saving a checkpoint is part of it.
class Departure {
 public:
  /// `stopping`: the workers are being ended. `can_prepare`: all of them are a Job's that can save. `preparing`: they are at it.
  [[nodiscard]] Departing on_signal(bool stopping, bool can_prepare, bool preparing) {
    ++signals_;
    // Who sent the notice ends the container soon after it, by a signal.
    if (signals_ == 1 && has_notice_) return Departing::goes_on;
    if (signals_ > 1 && stopping) return Departing::kill;
    if (signals_ == 1 && can_prepare) return Departing::prepare;
    return preparing ? Departing::leave_and_kill : Departing::leave;
  }
  /// A notice that this node will be taken away: as the first signal.
  [[nodiscard]] Departing on_notice(bool can_prepare) {
    if (signals_ > 0 || std::exchange(has_notice_, true)) return Departing::goes_on;
    return can_prepare ? Departing::prepare : Departing::leave;
  }
  /// The Job saves a checkpoint because of `signal` or, as `why` says, of a notice; the grace ends at `gone_by`.
  void prepare(int signal, std::string why, Instant gone_by) { signal_ = signal, why_ = std::move(why), gone_by_ = gone_by; }
  /// The workers get `signal`, for which `why` is the reason in words. Where the Job saved first, the signal and the reason of that stay.
  void leave(int signal, std::string why) {
    if (signal_ == 0) signal_ = signal, why_ = std::move(why);
  }
  /// The signal that asked this node to leave, or that a notice stands for; 0: none.
  [[nodiscard]] int signal() const { return signal_; }
  /// What asked this node to leave, in words.
  [[nodiscard]] const std::string& why() const { return why_; }
  /// When workers that are asked to end at `now` are killed, with `grace` for them.
  [[nodiscard]] Instant kill_at(Instant now, Duration grace) const { return gone_by_.value_or(now + grace); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  int signals_ = 0;  // that asked to end
  int signal_ = 0;
  std::string why_;
  bool has_notice_ = false;
  std::optional<Instant> gone_by_;
};

}  // namespace elrun::inline v0::launcher
