#pragma once
/// \file Which operation of which stream runs next, and who runs it: a thread of the host that calls or waits, or the background thread.
/// One operation runs at a time.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

#include "tests/fakegpu/runtime/random.hpp"
#include "tests/fakegpu/runtime/streams.hpp"

namespace fakegpu {

class Runtime;

class Scheduler {
 public:
  Scheduler(Runtime& runtime, std::uint64_t seed) : runtime_{runtime}, random_{seed} {}

  /// Puts an operation behind what is on `stream`, in the order that the legacy stream asks for.
  void push(Stream& stream, Operation operation);
  /// After a call that enqueued something: runs as much as the seed says.
  void after_push();
  /// Runs one turn of one operation. False: none can run now.
  bool step();
  /// Runs operations until `done` says so. The lock is given up while nothing can run.
  void wait(const std::function<bool()>& done);
  /// Something that a waiting operation depends on has changed.
  void wake() { changed_.notify_all(); }

  [[nodiscard]] bool is_running() const { return running_; }
  [[nodiscard]] Random& random() { return random_; }

  /// Taken by every entry point; the background thread lets callers go first.
  void lock();
  void unlock() { mutex_.unlock(); }

 private:
  void enqueue(Stream& stream, Operation operation);
  void order_with_legacy(Stream& stream);
  [[nodiscard]] bool can_run(const Stream& stream) const;
  [[nodiscard]] Stream* choose();
  void run_turn(Stream& stream);
  bool run_on_memory(Operation& operation);
  void run_host_function(const Operation& operation);
  void start_background();
  [[noreturn]] void background();
  [[nodiscard]] bool pending() const;

  Runtime& runtime_;
  Random random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> callers_{0};
  std::uint64_t numbered_ = 0;
  bool running_ = false;  ///< An operation runs; a host function does so without the lock.
  bool background_started_ = false;
  std::atomic<std::int64_t> last_call_{0};  ///< Of the steady clock, in nanoseconds.
  Stream* starved_ = nullptr;               ///< Runs only when no other stream can, for a while.
  std::uint64_t starved_for_ = 0;
};

}  // namespace fakegpu
