#pragma once
/// \file CoordinatorLine: what is known of the line to the coordinator, and what the coordinator knows by it. Pure.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

/// `is_up` says that the line is there. A coordinator `serves` once it has confirmed this node's generation on it: only then its
/// store answers, and only then reports are sent. What could not be sent follows from the workers' states, and is sent later.
class CoordinatorLine {
 public:
  /// `grace_left`: how much longer this node would have waited for it; nothing when it waited for none.
  void up(Instant now, std::optional<Duration> grace_left) {
    is_up_ = true, serves_ = false, waiting_for_.clear();
    up_since_ = now, grace_left_ = grace_left;
  }
  void down(const Failure& why, const std::string& coordinator) {
    // Where its name is an address already, the failure names it as well.
    waiting_for_ = "the coordinator at " + (why.what.starts_with(coordinator) ? why.what : coordinator + ": " + why.what);
    if (serves_) fell_silent_ = why.code == Code::deadline_passed;
    is_up_ = serves_ = false;
  }
  /// How long a coordinator is waited for from `now` on, when the line goes down: `whole`, as a rule. One that did not stay (`Timeouts::coordinator_stays`), and began no
  /// generation, gives no new grace: else nothing would end a wait in which coordinators come and go. But once in such a wait it is as long as another coordinator may take to come, whatever is left.
  [[nodiscard]] Duration grace(Instant now, Duration whole, const Timeouts& timeouts) {
    constexpr Duration least = 30s;
    if (!grace_left_ || now - up_since_ >= timeouts.coordinator_stays()) return is_prolonged_ = false, whole;
    if (*grace_left_ >= least || std::exchange(is_prolonged_, true)) return *grace_left_;
    return std::min(least, whole);
  }
  /// It runs this node's generation: a new one begins (`anew`), or it goes on with the one that is there.
  void serves(bool anew) {
    serves_ = true;
    if (anew) reported_job_ = false, waiting_for_.clear(), grace_left_.reset(), is_prolonged_ = false, decided_.reset();
  }
  [[nodiscard]] bool is_up() const { return is_up_; }
  [[nodiscard]] bool is_serving() const { return serves_; }
  [[nodiscard]] bool can_report() const { return is_up_ && serves_; }
  /// The last line ended because nothing came any more.
  [[nodiscard]] bool fell_silent() const { return fell_silent_; }

  /// The coordinator said what this node waits for. True when that is news.
  bool waits_for(const std::string& why) { return std::exchange(waiting_for_, why) != why; }
  [[nodiscard]] const std::string& waiting_for() const { return waiting_for_; }
  /// It spoke of a generation that runs without this node.
  void note_running(std::uint64_t generation) { newest_running_ = std::max(newest_running_, generation); }
  [[nodiscard]] std::uint64_t newest_running() const { return newest_running_; }

  /// It has decided on the job's end in this generation, and could not write that down yet.
  void note_decided(const Verdict& verdict) { decided_ = verdict; }
  [[nodiscard]] const std::optional<Verdict>& decided() const { return decided_; }

  /// It was told in this generation that the workers are a Job's.
  void note_job_reported() { reported_job_ = true; }
  [[nodiscard]] bool knows_job() const { return reported_job_; }
  /// True when the coordinator was told something else, or nothing, about who has not joined the world yet.
  bool must_tell_starting(const WorkersStarting& starting) {
    const Starting told{starting.rank, starting.count, starting.opened};
    if ((starting.count == 0 && !reported_starting_) || reported_starting_ == told) return false;
    reported_starting_ = told;
    if (starting.count == 0) reported_starting_.reset();
    return true;
  }
  void forget_starting() { reported_starting_.reset(); }
  /// Another coordinator may have come: all that it must know is sent again.
  void forget_reports() { reported_job_ = false, reported_starting_.reset(); }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  using Starting = std::tuple<std::uint32_t, std::uint32_t, bool>;  // the first of them, their number, whether its session is open
  bool is_up_ = false;
  bool serves_ = false;
  bool fell_silent_ = false;
  Instant up_since_{};                  // the last line, and
  std::optional<Duration> grace_left_;  // what was left of the wait that it ended
  bool is_prolonged_ = false;           // that wait was, as there was hardly anything left of it
  bool reported_job_ = false;
  std::optional<Starting> reported_starting_;
  std::uint64_t newest_running_ = 0;
  std::string waiting_for_;  // the last reason, for people
  std::optional<Verdict> decided_;
};

}  // namespace elrun::inline v0::launcher
