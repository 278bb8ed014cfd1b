#pragma once
/// \file StopRequest: that the program asked for the job's end, and that a step's votes decided it. Core, called by the job's thread.
///
/// What was asked in a step that is revoked is forgotten, and asked again when the step is done again. What was asked between steps stays.

namespace elrun::inline v0 {

class StopRequest {
 public:
  void ask() { asked_ = true; }
  /// It travels with the next vote.
  [[nodiscard]] bool is_asked() const { return asked_; }
  /// A step is handed out.
  void keep() { kept_ = asked_; }
  /// That step is revoked.
  void put_back() { asked_ = kept_; }
  /// Some member's vote for a decided step asked for the end: that step is the last one.
  void decide() { decided_ = true, asked_ = false; }
  [[nodiscard]] bool is_decided() const { return decided_; }
  /// From a checkpoint, from another member, or from nothing.
  void set(bool asked, bool decided) { asked_ = asked, decided_ = decided; }

 private:
  bool asked_ = false, kept_ = false, decided_ = false;
};

}  // namespace elrun::inline v0
