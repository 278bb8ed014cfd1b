#pragma once
/// \file Courier: carries a rank's errands from round to round: on a thread of its own while the job's computes, and on the job's
/// when that one waits anyway.

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

#include "lib/job/errands.hpp"

namespace elrun::inline v0 {

/// What a round did of what all said.
struct Heard {
  std::span<const Need> by_rank;
  std::uint32_t me = 0;
};

/// What a courier works for.
struct CourierTasks {
  /// One round: says `mine`, and does what all need. Nothing: the world is over. One at a time, on either thread. Ends by itself:
  /// by its deadline, or because the world is over.
  std::function<std::optional<Heard>(const Need& mine)> round;
  std::function<bool()> over;                         ///< Whether the world is.
  std::function<void(std::string_view why)> give_up;  ///< Ends the world, and with it the round under way. Thread-safe.
  std::function<Duration()> limit;                    ///< What a round has to end in by its own deadlines.
  std::function<void()> stuck;                        ///< The world is over, and a round goes on: does not return, or the round has ended.
  Duration ends_within = 60s;                         ///< A round, once the world is over.
};

/// Used by the job's thread. It waits for rounds, which have deadlines; one that outlives its own ends the world.
class Courier {
 public:
  explicit Courier(CourierTasks tasks) : tasks_{std::move(tasks)} {}
  /// Waits for nobody but its own thread, whose round it ends.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  /// From now on what is told is carried while the job's thread does something else.
  void work_alone();

  /// Changes what is to be done; nothing any more where the world is over.
  template <class Change>
  void tell(const Change& change) {
    const std::lock_guard lock{meeting_->mutex};
    if (tasks_.over()) return;
    change(errands_);
    wake();
  }
  /// The same, and comes to rounds until something holds. False: the world is over, and no round is under way. Then nothing
  /// holds any more, for what was told since then was not heard: what was here may have been let go.
  template <class Change, class Holds>
  bool until(const Change& change, const Holds& holds) {
    std::unique_lock lock{meeting_->mutex};
    if (!tasks_.over()) change(errands_);
    const Waiting waiting{*this};
    for (;;) {
      if (thrown_) std::rethrow_exception(thrown_);
      const bool over = failed_ || tasks_.over();
      if (!over && holds(errands_)) return true;
      if (under_way_) wait_for_round(lock);
      else if (over) return false;
      else round(lock);
    }
  }
  /// Forgets everything, once no round is under way: the world is over, or nothing was begun. What was thrown on the other
  /// thread comes out here, too.
  void begin_anew(std::size_t units);

 private:
  struct Waiting {
    explicit Waiting(Courier& of) : courier{of} { courier.waits_ = true; }
    ~Waiting() {
      courier.waits_ = false;
      courier.wake();
    }
    Courier& courier;
  };
  [[nodiscard]] bool has_work() const { return !waits_ && !under_way_ && !failed_ && !thrown_ && errands_.has_word(); }
  void wake() {
    if (thread_.joinable() && has_work()) meeting_->work.notify_one();
  }
  void wait_for_round(std::unique_lock<std::mutex>& lock);
  void round(std::unique_lock<std::mutex>& lock);
  void run();

  /// Where the two threads meet. Left behind in a forked child: there the thread would wait in it for ever, and whoever destroys
  /// it would wait for the thread.
  struct Meeting {
    std::mutex mutex;  // of all below
    std::condition_variable work, done;
  };
  CourierTasks tasks_;
  const int owner_ = ::getpid();
  std::unique_ptr<Meeting> meeting_ = std::make_unique<Meeting>();
  Errands errands_;
  bool under_way_ = false, waits_ = false, failed_ = false, stops_ = false;
  std::exception_ptr thrown_;
  std::thread thread_;
};

}  // namespace elrun::inline v0
