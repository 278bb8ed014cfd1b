#pragma once
/// \file A block of threads: each runs on a stack of its own until it waits for others, or ends.

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "tests/fakegpu/simt/device_side.hpp"
#include "tests/fakegpu/simt/fiber.hpp"
#include "tests/fakegpu/simt/interpreter.hpp"

namespace fakegpu {

inline constexpr unsigned warp_lanes = 32;

enum class State : std::uint8_t { unstarted, ready, at_barrier, in_warp, done };

struct Thread {
  State state = State::unstarted;
  std::unique_ptr<Fiber> fiber;                  ///< While it is started and not done.
  std::deque<std::vector<AsyncCopy>> copies{1};  ///< That are not made yet, in groups; the last one is not ended.
};

/// Lanes that wait for each other.
struct Warp {
  unsigned arrived = 0, mask = 0;
  WarpCall call = WarpCall::sync;
  unsigned done = 0;  ///< Lanes that ended, and lanes that the block does not have.
  std::uint64_t given[warp_lanes] = {}, taken[warp_lanes] = {};
};

/// Threads that wait for each other.
struct Barrier {
  unsigned waiting = 0;
  unsigned counted = 0;  ///< Those that gave a value that is not zero.
  unsigned result = 0;   ///< The count when it was last passed.
};

/// One block at a time. Threads run one at a time: each until it waits for others, or ends.
class Block {
 public:
  bool run(Runtime& runtime, const GridRun& run, std::uint32_t number, Index index);

  void barrier();
  unsigned count(bool value);
  std::uint64_t exchange(WarpCall call, unsigned mask, std::uint64_t value, unsigned from);
  unsigned ballot(unsigned mask, bool value);
  bool is_made_at_once(const AsyncCopy& copy);
  void end_group_of_copies() { threads_[current_].copies.emplace_back(); }
  AsyncCopy next_copy(unsigned left);
  [[noreturn]] void stop();

  [[nodiscard]] unsigned current() const { return current_; }
  [[nodiscard]] Runtime& runtime() { return *runtime_; }
  [[nodiscard]] bool is_running() const { return running_; }

 private:
  static void fiber_main();
  void begin(const GridRun& run, std::uint32_t number, Index index);
  void run_unstarted();
  void resume_ready();
  void enter(unsigned thread);
  void finish_current();
  void wait_as(State state);
  void release_barrier();
  void release_warp(unsigned warp);
  [[nodiscard]] bool all_here(unsigned warp) const;
  void report_standstill();
  [[nodiscard]] std::unique_ptr<Fiber> take_fiber();

  Runtime* runtime_ = nullptr;
  const GridRun* run_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;  ///< In which threads start.
  std::vector<unsigned> ready_;
  std::vector<std::unique_ptr<Fiber>> free_fibers_;
  Barrier barrier_;
  unsigned size_ = 0, started_ = 0, ended_ = 0, current_ = 0;
  std::unique_ptr<Fiber> starting_;  ///< The stack on which threads start that have not waited yet.
  bool stopped_ = false, running_ = false;
};

/// The one block that runs. Under the runtime's lock.
extern Block& block;

}  // namespace fakegpu
