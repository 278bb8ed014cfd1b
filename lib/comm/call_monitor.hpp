#pragma once
/// \file CallMonitor: where the thread that makes a group's calls and its communication thread meet.

#include <condition_variable>
#include <mutex>
#include <optional>

#include <elrun/result.hpp>

namespace elrun::inline v0 {

/// Holds whether the group is connected, whether the call at hand goes on in frames, and the failure that ended the group. Thread-safe.
/// The first failure stays. Waits have no deadline of their own: the communication thread keeps it, and reports here.
class CallMonitor {
 public:
  // --- the caller ---
  Result<void> wait_until_connected();
  /// `in_frames`: a part of the call goes on on the communication thread. A group that is over has no calls.
  Result<void> begin(bool in_frames);
  /// Until the part in frames is over. `succeeded`: the caller's own part, through memory. If it did not, until the group's failure is known.
  Result<void> wait_for_end(bool succeeded);

  // --- the communication thread, and `fail` from any ---
  void set_connected();
  /// The part in frames is over.
  void end(bool success);
  /// False: the group has failed before, and this failure is dropped. Wakes nobody: first nothing may touch the caller's memory any more.
  bool fail(Failure failure);
  void wake();

 private:
  enum class Call { over, under_way };
  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false;
  Call call_ = Call::over;
  bool call_succeeded_ = true;
  std::optional<Failure> failure_;
};

}  // namespace elrun::inline v0
