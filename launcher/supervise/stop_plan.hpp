#pragma once
/// \file StopPlan: this node's workers are being stopped. Since when, and what follows. Pure.

#include <optional>
#include <string>
#include <utility>

#include <elrun/units.hpp>

#include "launcher/report/endings.hpp"
#include "launcher/supervise/events.hpp"
#include "launcher/supervise/node_workers.hpp"
#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

/// What follows once all workers are stopped.
struct AfterStop {
  bool rejoin = true;  ///< The next generation; else the node finishes.
  Finish finish;
  std::string asked_by{};  ///< The signal or the notice that asked for it; empty: none
  /// The world that was revoked, with the counts and the cause that follow from that. Dead workers' successors can be started beside it at once. None: it ends for another reason.
  std::optional<World> revoked{};
};

/// The first reason to finish stays. A reason to finish replaces one to join again.
class StopPlan {
 public:
  /// The workers begin to stop, or do so by themselves.
  void begin(AfterStop after, Instant now) { after_ = std::move(after), since_ = now; }
  /// They are on their way already.
  void replace(AfterStop after) { after_ = std::move(after); }
  [[nodiscard]] bool rejoins() const { return after_.rejoin; }
  /// The job is over, and a worker did not come to the end of its last work because of `signal`: the node does not end with 0, for nobody would look.
  void cut_short(int signal, const std::string& asked_by) {
    if (after_.finish.exit_code == 0) after_.finish.exit_code = 128 + signal;
    if (after_.asked_by.empty()) after_.asked_by = asked_by;
  }
  [[nodiscard]] Instant since() const { return since_; }
  [[nodiscard]] const std::optional<World>& revoked() const { return after_.revoked; }
  /// Only the good end of a job leaves alone what put itself into a session of its own.
  [[nodiscard]] bool ends_leftovers() const { return after_.rejoin || after_.finish.exit_code != 0; }
  /// Of `workers`, which are all stopped. It says what became of them, when a signal or a notice asked for that: then all have ended.
  [[nodiscard]] Finish finish(const Workers& workers, bool job_over) const {
    Finish finish = after_.finish;
    if (!after_.asked_by.empty())
      finish.after_signal = after_.asked_by + (job_over ? ": the job was done; " : ": this node has left; ") + fate_of(workers);
    return finish;
  }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  AfterStop after_;
  Instant since_{};
};

}  // namespace elrun::inline v0::launcher
