#pragma once
/// \file CommThread: sends this rank's pending requests in exchange rounds. It runs on its own thread while the job's thread computes.
/// When the job's thread has to wait anyway, that thread does the work itself.

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include <unistd.h>

#include <elrun/units.hpp>

#include "lib/job/gather/pending_requests.hpp"

namespace elrun::inline v0 {

/// What a round did of what all said.
struct Heard {
  std::span<const Need> by_rank;
  std::uint32_t me = 0;
};

/// What a communication thread calls.
struct CommThreadTasks {
  /// One round: says `mine`, and does what all need. Nothing: the world is over. One at a time, on either thread. Ends by itself:
  /// by its deadline, or because the world is over.
  std::function<std::optional<Heard>(const Need& mine)> round;
  std::function<bool()> over;                         ///< Whether the world is.
  std::function<void(std::string_view why)> give_up;  ///< Ends the world, and with it the round under way. Thread-safe.
  std::function<Duration()> limit;                    ///< What a round has to end in by its own deadlines.
  std::function<void()> stuck;                        ///< The world is over, and a round goes on: does not return, or the round has ended.
  Duration ends_within = 60s;                         ///< A round, once the world is over.
};

/// Used by the job's thread. Every wait is for a round. Rounds have deadlines; one that outlives its own ends the world.
class CommThread {
 public:
  explicit CommThread(CommThreadTasks tasks) : tasks_{std::move(tasks)} {}
  /// Waits for nobody but its own thread, whose round it ends.
  ~CommThread();
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;

  /// From now on requests are sent while the job's thread does something else.
  void work_alone();

  /// Changes the requests. Does nothing once the world is over.
  template <class Change>
  void tell(const Change& change) {
    const std::lock_guard lock{meeting_->mutex};
    if (tasks_.over()) return;
    change(requests_);
    wake();
  }
  /// The same, then runs rounds until `holds`. False: the world is over, and no round is under way. Then `holds` is not asked any
  /// more: changes made since the end were dropped, so its answer could be out of date.
  template <class Change, class Holds>
  bool until(const Change& change, const Holds& holds) {
    std::unique_lock lock{meeting_->mutex};
    if (!tasks_.over()) change(requests_);
    const Waiting waiting{*this};
    for (;;) {
      if (thrown_) std::rethrow_exception(thrown_);
      const bool over = failed_ || tasks_.over();
      if (!over && holds(requests_)) return true;
      if (under_way_) wait_for_round(lock);
      else if (over) return false;
      else round(lock);
    }
  }
  /// Waits for the round under way, then drops all requests. Called when the world is over, or before anything was begun. Rethrows
  /// what was thrown on the other thread.
  void begin_anew(std::size_t units);

 private:
  struct Waiting {
    explicit Waiting(CommThread& of) : comm_thread{of} { comm_thread.waits_ = true; }
    ~Waiting() {
      comm_thread.waits_ = false;
      comm_thread.wake();
    }
    CommThread& comm_thread;
  };
  [[nodiscard]] bool has_work() const { return !waits_ && !under_way_ && !failed_ && !thrown_ && requests_.has_request(); }
  void wake() {
    if (thread_.joinable() && has_work()) meeting_->work.notify_one();
  }
  void wait_for_round(std::unique_lock<std::mutex>& lock);
  void round(std::unique_lock<std::mutex>& lock);
  void run();

  /// What both threads use. After fork, the child leaks this object on purpose: the thread does not exist there, and destroying a
  /// condition variable that has a waiter would never return.
  struct Meeting {
    std::mutex mutex;  // of all below
    std::condition_variable work, done;
  };
  CommThreadTasks tasks_;
  const int owner_ = ::getpid();
  std::unique_ptr<Meeting> meeting_ = std::make_unique<Meeting>();
  PendingRequests requests_;
  bool under_way_ = false, waits_ = false, failed_ = false, stops_ = false;
  std::exception_ptr thrown_;
  std::thread thread_;
};

}  // namespace elrun::inline v0
