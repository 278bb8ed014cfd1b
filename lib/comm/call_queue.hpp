#pragma once
/// \file CallQueue: the calls of one group, one after the other. Asynchronous calls run on a thread of its own, which starts with the first of them.

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <elrun/process_group.hpp>

#include "lib/base/clock.hpp"
#include "lib/comm/owner.hpp"

namespace elrun::inline v0 {

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Result<void> result;
};

/// The side of a Work that knows when the call is over. Thread-safe.
class WorkPromise {
 public:
  WorkPromise() : state_{std::make_shared<Work::State>()} {}
  [[nodiscard]] Work work() const { return Work{state_}; }
  /// The call is over. Once.
  void end(Result<void> result) const;

 private:
  std::shared_ptr<Work::State> state_;
};

/// Used by one thread. The destructor waits for the calls that were begun: whoever owns it makes them fail first.
class CallQueue {
 public:
  using Call = std::function<Result<void>()>;
  using Broken = std::function<void(const Failure&)>;

  CallQueue() = default;
  /// `broken` is called on the queue's thread when a call there threw: it was left half way, and its peers wait. The call fails with `exhausted`.
  explicit CallQueue(Broken broken) : broken_{std::move(broken)} {}
  ~CallQueue();
  /// Behind all that were begun. Fails at once with `exhausted` when too many wait, and with `refused` in a forked child.
  /// Throws when its thread cannot be started; then nothing was begun.
  Work begin(Call call);
  /// The same, and waits for it; on the caller's own thread when nothing is under way.
  template <class Body>
  Result<void> in_turn(const Body& call) {
    ELRUN_TRY(check_owner(owner_));  // first: in a child the queue may be locked, or busy, for ever
    if (idle()) return call();       // nobody else begins one meanwhile
    return result_of(begin(call));
  }
  [[nodiscard]] bool started() const { return thread_.joinable(); }

 private:
  struct Entry {
    Call call;
    WorkPromise promise;
  };
  bool idle();
  static Result<void> result_of(const Work& work);
  Result<void> make(const Call& call);
  void run();

  const Broken broken_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> waiting_;
  bool running_ = false, over_ = false;
  std::thread thread_;
  const int owner_ = ::getpid();
};

}  // namespace elrun::inline v0
