#pragma once
/// \file Departure: a node that was asked to leave. All members save before it goes, and its agent is told once that the job can go on without it.

#include <utility>

#include <elrun/session.hpp>

namespace elrun::inline v0 {

/// Of one generation. Called by the job's thread.
class Departure {
 public:
  explicit Departure(Session& session) : session_{session} {}

  /// This member's node leaves, and its agent was not told yet. The next vote says so.
  [[nodiscard]] bool is_unreported() const { return session_.is_leaving() && !reported_; }
  void tell_agent() {
    if (!is_unreported()) return;
    reported_ = true;
    session_.ready_to_leave();
  }
  /// This member's node leaves, and its agent knows that it may.
  [[nodiscard]] bool is_reported() const { return reported_ && session_.is_leaving(); }
  /// Some member said so with its vote for the last decided step. All members have the same votes.
  void set_member_leaves(bool leaves) { member_leaves_ = leaves; }
  [[nodiscard]] bool member_leaves() const { return member_leaves_; }
  /// Asked once: it is saved by now.
  [[nodiscard]] bool take_member_leaves() { return std::exchange(member_leaves_, false); }
  void begin_generation() { reported_ = member_leaves_ = false; }

 private:
  Session& session_;
  bool member_leaves_ = false, reported_ = false;
};

}  // namespace elrun::inline v0
