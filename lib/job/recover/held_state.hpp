#pragma once
/// \file HeldState: what of the job's state this member holds, and where it is from. Core: a value, changed by what happens to the member.
///
/// Parameters and moments can be there without host state: a newcomer gets the one first, and the other once all are at `next_step()`.
/// A member whose arenas may hold parts of a state, but no whole one, cannot begin where it is: its program has to run again.
/// Called by the job's thread.

namespace elrun::inline v0 {

class HeldState {
 public:
  /// Parameters and moments of all steps that this member applied.
  [[nodiscard]] bool has_state() const { return state_; }
  /// And host state; else it comes from the others.
  [[nodiscard]] bool has_host_state() const { return host_state_; }
  /// `restore()` found a state, or got one; else the program makes initial values.
  [[nodiscard]] bool is_found() const { return found_; }
  /// `restore()` has returned.
  [[nodiscard]] bool is_restored() const { return restored_; }
  /// It joined a job that runs, and its program has not come to `next_step()` yet: the others go there without what it does before.
  [[nodiscard]] bool joined_running() const { return joined_running_; }
  /// The program has made initial values, or the arenas may hold parts of a state: it cannot begin from nothing where it is.
  [[nodiscard]] bool has_begun() const { return restored_ || overwritten_; }
  /// What was taken over is still what this member holds.
  [[nodiscard]] bool keeps_position() const { return kept_; }

  /// All was taken over from the program's run before this one.
  void take_over() { state_ = found_ = overwritten_ = kept_ = true; }
  /// But not its host state: this member counts as a newcomer.
  void lose() { state_ = kept_ = false; }
  /// What the program writes now may be made of weights that did not come, or a transfer was cut short: arenas may hold a mixture.
  void spoil() { state_ = kept_ = false, overwritten_ = true; }
  /// The others give parameters and moments; host state comes later.
  void receive_state() { state_ = true, host_state_ = false; }
  void receive_host_state() { found_ = true; }
  /// No member has a whole state: it comes from a checkpoint, if there is a directory for them, or from nothing.
  void begin_anew(bool loads) { state_ = found_ = kept_ = false, overwritten_ |= loads; }
  void load() { found_ = true; }
  /// What `begin_anew` or the others left is all that there is: without a checkpoint the program makes it, in or after `restore()`.
  void complete() { state_ = restored_ || found_, host_state_ = true; }
  /// `restore()` returns: the state is there, or the program makes it now. `running`: others were there before.
  void restored(bool running) { restored_ = state_ = true, joined_running_ = running; }
  void come_to_next_step() { joined_running_ = false; }

 private:
  bool state_ = false, host_state_ = true, found_ = false, overwritten_ = false, restored_ = false, joined_running_ = false, kept_ = false;
};

}  // namespace elrun::inline v0
