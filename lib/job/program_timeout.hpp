#pragma once
/// \file ProgramTimeout: how long peers and the agent wait for the program. It follows from how long the program is away from the world, in a slot or in a save.

#include <algorithm>

#include <elrun/session.hpp>

#include "lib/base/clock.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

/// Called by the job's thread. All that it is made from outlives it.
class ProgramTimeout {
 public:
  ProgramTimeout(const Clock& clock, Session& session, JobWorld& world) : clock_{clock}, session_{session}, world_{world} {}

  /// The programs of all ranks load, or get slots. Until this one has ended a step's slot nobody here knows how long one takes, whatever an evaluation or
  /// a save took; a rank without slots never knows.
  void begin_slots() { evaluates_ = false, set_timeout(); }
  /// The same of an evaluation, of whose slots this rank may have none, or short ones. Until `begin_slots`.
  void begin_evaluation() { evaluates_ = true, set_timeout(); }
  /// State travels beside the slots of the next step, and may take so long: in that step ranks wait for each other as long at least. Until `end_transfer`.
  void begin_transfer(Duration most) { transfer_ = most, set_timeout(); }
  void end_transfer() { transfer_ = {}, set_timeout(); }
  /// How long the last slot of a step took; 0: there was none.
  [[nodiscard]] Duration last_slot() const { return last_slot_; }
  /// A step's slot that was begun then.
  void ended_slot(Instant begun) {
    had_slot_ = true;
    last_slot_ = clock_.now() - begun;
    ended(begun);
  }
  /// The program, in a slot of an evaluation or one that was revoked, or a save was away since `begun`.
  void ended(Instant begun) {
    const Duration took = clock_.now() - begun;
    if (took > longest_) session_.returns_within(times_to_return * (longest_ = took));
    set_timeout();
  }
  /// The program runs again in this process, and is as slow as before.
  void continue_from(const ProgramTimeout& before) {
    longest_ = before.longest_, had_slot_ = before.had_slot_, last_slot_ = before.last_slot_;
    set_timeout();
  }

 private:
  /// With the others' programs as with this one.
  void set_timeout() {
    world_.set_timeout(std::max<Duration>({had_slot_ && !evaluates_ ? Duration{} : unknown_within, times_to_return * longest_, transfer_}));
  }
  static constexpr int times_to_return = 8;  // the longest absence: so long may a program take to come back to next_step()
  static constexpr Duration unknown_within = 1h;
  const Clock& clock_;
  Session& session_;
  JobWorld& world_;
  Duration longest_{}, last_slot_{}, transfer_{};
  bool had_slot_ = false, evaluates_ = false;
};

}  // namespace elrun::inline v0
