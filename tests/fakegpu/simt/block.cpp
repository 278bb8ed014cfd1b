#include "tests/fakegpu/simt/block.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tests/fakegpu/runtime/reports.hpp"
#include "tests/fakegpu/runtime/runtime.hpp"

namespace fakegpu {

Block& block = *new Block;  // never destroyed: the background thread may run a kernel while the process ends

void Block::fiber_main() {
  block.run_unstarted();
  Fiber::leave();
}

std::unique_ptr<Fiber> Block::take_fiber() {
  if (free_fibers_.empty()) return std::make_unique<Fiber>();
  auto fiber = std::move(free_fibers_.back());
  free_fibers_.pop_back();
  return fiber;
}

void Block::enter(unsigned thread) {
  current_ = thread;
  const Index& d = position.block_dim;
  position.thread = {thread % d.x, thread / d.x % d.y, thread / (d.x * d.y)};
  runtime_->checker.thread().thread = static_cast<ThreadMark>(thread);
}

// On a fiber: as long as threads end without waiting, they follow each other on the same stack.
void Block::run_unstarted() {
  while (started_ < size_) {
    const unsigned me = order_[started_++];
    enter(me);
    threads_[me].state = State::ready;
    run_->body(run_->arguments);
    finish_current();
    if (threads_[me].fiber != nullptr) return;  // it waited, and others have started on other stacks since
  }
}

void Block::finish_current() {
  threads_[current_].state = State::done;
  ++ended_;
  Warp& warp = warps_[current_ / warp_lanes];
  warp.done |= 1u << current_ % warp_lanes;
  if (warp.arrived != 0 && all_here(current_ / warp_lanes)) release_warp(current_ / warp_lanes);
}

void Block::begin(const GridRun& run, std::uint32_t number, Index index) {
  run_ = &run;
  size_ = run.block.x * run.block.y * run.block.z;
  position.block = index;
  if (threads_.size() < size_) threads_.resize(size_);
  for (unsigned t = 0; t < size_; ++t) {
    threads_[t].state = State::unstarted;
    if (threads_[t].copies.size() > 1 || !threads_[t].copies[0].empty()) threads_[t].copies.assign(1, {});
  }
  warps_.assign((size_ + warp_lanes - 1) / warp_lanes, Warp{});
  if (size_ % warp_lanes != 0) warps_.back().done = ~0u << size_ % warp_lanes;
  Random& random = runtime_->scheduler.random();
  order_.resize(size_);
  const auto step = static_cast<unsigned>(1 + random.below(size_)), first = static_cast<unsigned>(random.below(size_));
  const unsigned stride = std::gcd(step, size_) == 1 ? step : 1;
  for (unsigned t = 0; t < size_; ++t) order_[t] = (first + t * stride) % size_;
  ready_.clear();
  started_ = ended_ = 0;
  barrier_ = Barrier{};
  stopped_ = false;
  RunningThread& thread = runtime_->checker.thread();
  thread = RunningThread{};
  thread.block = number;
  thread.block_begin = runtime_->history.tick();
}

bool Block::run(Runtime& runtime, const GridRun& run, std::uint32_t number, Index index) {
  runtime_ = &runtime;
  begin(run, number, index);
  Random& random = runtime.scheduler.random();
  running_ = true;
  while (ended_ < size_ && !stopped_) {
    if (started_ < size_ && (ready_.empty() || random.below(4) != 0)) {
      auto fiber = take_fiber();
      fiber->prepare(fiber_main);
      Fiber& now = *fiber;
      starting_ = std::move(fiber);
      now.resume();
      if (starting_ != nullptr) free_fibers_.push_back(std::move(starting_));
    } else if (!ready_.empty()) {
      resume_ready();
    } else {
      report_standstill();
      stopped_ = true;
    }
  }
  running_ = false;
  for (Thread& thread : threads_)
    if (thread.fiber != nullptr) free_fibers_.push_back(std::move(thread.fiber));
  return !stopped_;
}

void Block::resume_ready() {
  const std::size_t i = runtime_->scheduler.random().below(ready_.size());
  const unsigned thread = ready_[i];
  ready_[i] = ready_.back();
  ready_.pop_back();
  enter(thread);
  threads_[thread].fiber->resume();
  if (threads_[thread].state == State::done) free_fibers_.push_back(std::move(threads_[thread].fiber));
}

// The stack on which the thread runs becomes its own until it ends.
void Block::wait_as(State state) {
  const unsigned me = current_;
  threads_[me].state = state;
  if (starting_ != nullptr) threads_[me].fiber = std::move(starting_);
  Fiber::leave();
}

void Block::barrier() {
  if (++barrier_.waiting == size_) return release_barrier();
  wait_as(State::at_barrier);
}

void Block::release_barrier() {
  barrier_.waiting = 0;
  barrier_.result = std::exchange(barrier_.counted, 0);
  runtime_->checker.thread().barrier = runtime_->history.tick();
  for (unsigned t = 0; t < size_; ++t) {
    if (threads_[t].state != State::at_barrier) continue;
    threads_[t].state = State::ready;
    ready_.push_back(t);
  }
}

unsigned Block::count(bool value) {
  barrier_.counted += value ? 1 : 0;
  barrier();
  return barrier_.result;
}

bool Block::all_here(unsigned warp) const {
  const Warp& w = warps_[warp];
  return (w.mask & ~w.done & ~w.arrived) == 0;
}

std::uint64_t Block::exchange(WarpCall call, unsigned mask, std::uint64_t value, unsigned from) {
  const unsigned number = current_ / warp_lanes, lane = current_ % warp_lanes;
  Warp& warp = warps_[number];
  if ((mask >> lane & 1) == 0) report(runtime_->checker.who() + " calls a function of its warp with a mask in which it is not");
  if (warp.arrived != 0 && (warp.mask != mask || warp.call != call))
    report(runtime_->checker.who() + " and other lanes of its warp meet in different calls, or with different masks");
  warp.mask = mask;
  warp.call = call;
  warp.arrived |= 1u << lane;
  warp.given[lane] = value;
  if (all_here(number)) release_warp(number);
  else wait_as(State::in_warp);
  return warps_[number].taken[from % warp_lanes];
}

unsigned Block::ballot(unsigned mask, bool value) {
  exchange(WarpCall::ballot, mask, value ? 1 : 0, 0);
  const Warp& warp = warps_[current_ / warp_lanes];
  unsigned result = 0;
  for (unsigned lane = 0; lane < warp_lanes; ++lane)
    if ((mask >> lane & 1) != 0 && warp.taken[lane] == 1) result |= 1u << lane;
  return result;
}

bool Block::is_made_at_once(const AsyncCopy& copy) {
  if (runtime_->scheduler.random().below(2) == 0) return true;
  threads_[current_].copies.back().push_back(copy);
  return false;
}

AsyncCopy Block::next_copy(unsigned left) {
  auto& copies = threads_[current_].copies;
  while (copies.size() > std::size_t{left} + 1) {
    if (copies.front().empty()) {
      copies.pop_front();
      continue;
    }
    const AsyncCopy copy = copies.front().back();
    copies.front().pop_back();
    return copy;
  }
  return {};
}

void Block::release_warp(unsigned number) {
  Warp& warp = warps_[number];
  for (unsigned lane = 0; lane < warp_lanes; ++lane) {
    const unsigned t = number * warp_lanes + lane;
    const bool gave = (warp.arrived >> lane & 1) != 0;
    warp.taken[lane] = gave ? warp.given[lane] : ~std::uint64_t{0};  // of a lane that is not there: anything
    if (!gave || threads_[t].state != State::in_warp) continue;
    threads_[t].state = State::ready;
    ready_.push_back(t);
  }
  warp.arrived = 0;
  runtime_->checker.thread().warp_barrier[number] = runtime_->history.tick();
}

void Block::report_standstill() {
  unsigned waiting = 0, in_warp = 0, first_waiting = size_, first_away = size_;
  for (unsigned t = 0; t < size_; ++t) {
    const State state = threads_[t].state;
    if (state == State::at_barrier) ++waiting, first_waiting = std::min(first_waiting, t);
    else first_away = std::min(first_away, t);
    if (state == State::in_warp) ++in_warp;
  }
  enter(first_waiting < size_ ? first_waiting : first_away);
  report(runtime_->checker.who() + ": the block stands still. " + std::to_string(waiting) + " of " + std::to_string(size_) +
         " threads wait at a barrier, " + std::to_string(in_warp) + " for lanes of their warp, " + std::to_string(ended_) + " have ended" +
         (first_away < size_ && waiting > 0 ? "; thread " + std::to_string(first_away) + " does not reach the barrier" : ""));
}

void Block::stop() {
  stopped_ = true;
  if (starting_ != nullptr) threads_[current_].fiber = std::move(starting_);
  Fiber::leave();
  __builtin_unreachable();
}

}  // namespace fakegpu
