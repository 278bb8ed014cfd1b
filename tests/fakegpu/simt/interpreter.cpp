#include "tests/fakegpu/simt/interpreter.hpp"

#include <link.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/fakegpu/runtime/reports.hpp"
#include "tests/fakegpu/runtime/runtime.hpp"
#include "tests/fakegpu/simt/access.hpp"
#include "tests/fakegpu/simt/device_side.hpp"
#include "tests/fakegpu/simt/fiber.hpp"

namespace fakegpu {

Position position;

namespace {

constexpr unsigned warp_lanes = 32;
constexpr std::size_t dynamic_shared_max = 256 << 10;

enum class State : std::uint8_t { unstarted, ready, at_barrier, in_warp, done };

struct Thread {
  State state = State::unstarted;
  std::unique_ptr<Fiber> fiber;  ///< While it is started and not done.
};

/// Lanes that wait for each other.
struct Warp {
  unsigned arrived = 0, mask = 0;
  WarpCall call = WarpCall::sync;
  unsigned done = 0;  ///< Lanes that ended, and lanes that the block does not have.
  std::uint64_t given[warp_lanes] = {}, taken[warp_lanes] = {};
};

/// One block at a time. Threads run one at a time: each until it waits for others, or ends.
class Block {
 public:
  bool run(Runtime& runtime, const GridRun& run, std::uint32_t number, Index index);

  void barrier();
  unsigned count(bool value);
  std::uint64_t exchange(WarpCall call, unsigned mask, std::uint64_t value, unsigned from);
  unsigned ballot(unsigned mask, bool value);
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
  unsigned size_ = 0, started_ = 0, ended_ = 0, at_barrier_ = 0, current_ = 0;
  unsigned counted_ = 0, count_result_ = 0;
  std::unique_ptr<Fiber> starting_;  ///< The stack on which threads start that have not waited yet.
  bool stopped_ = false, running_ = false;
};

Block& block = *new Block;  // never destroyed: the background thread may run a kernel while the process ends

/// The data of the library that a twin lies in: its variables of static duration are the shared memory.
struct Module {
  std::uintptr_t begin = 0, end = 0;
  SharedMemory shared;
};

struct Search {
  std::uintptr_t code;
  Module* module;
};

int find_module(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  bool is_it = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    is_it |= part.p_type == PT_LOAD && search.code - (info->dlpi_addr + part.p_vaddr) < part.p_memsz;
  }
  if (!is_it) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_W) == 0) continue;
    search.module->begin = info->dlpi_addr + part.p_vaddr;
    search.module->end = search.module->begin + part.p_memsz;
  }
  return 1;
}

/// Of the twin that runs, and what `extern __shared__` would be.
Module* module_now = nullptr;
SharedMemory& dynamic_now = *new SharedMemory;
alignas(1024) std::byte dynamic_bytes[dynamic_shared_max];

Module& module_of(TwinBody body) {
  static auto& modules = *new std::vector<std::unique_ptr<Module>>;
  static auto& known = *new std::vector<std::pair<std::uintptr_t, Module*>>;
  const auto code = reinterpret_cast<std::uintptr_t>(body);
  for (const auto& [at, module] : known)
    if (at == code) return *module;
  Module found;
  Search search{code, &found};
  dl_iterate_phdr(find_module, &search);
  for (const auto& module : modules)
    if (module->begin == found.begin) return known.emplace_back(code, module.get()), *module;
  found.shared.place.kind = MemoryKind::shared;
  found.shared.place.size = found.end - found.begin;
  modules.push_back(std::make_unique<Module>(std::move(found)));
  known.emplace_back(code, modules.back().get());
  return *modules.back();
}

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
  for (unsigned t = 0; t < size_; ++t) threads_[t].state = State::unstarted;
  warps_.assign((size_ + warp_lanes - 1) / warp_lanes, Warp{});
  if (size_ % warp_lanes != 0) warps_.back().done = ~0u << size_ % warp_lanes;
  Random& random = runtime_->scheduler.random();
  order_.resize(size_);
  const auto step = static_cast<unsigned>(1 + random.below(size_)), first = static_cast<unsigned>(random.below(size_));
  const unsigned stride = std::gcd(step, size_) == 1 ? step : 1;
  for (unsigned t = 0; t < size_; ++t) order_[t] = (first + t * stride) % size_;
  ready_.clear();
  started_ = ended_ = at_barrier_ = counted_ = 0;
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
  if (++at_barrier_ == size_) return release_barrier();
  wait_as(State::at_barrier);
}

void Block::release_barrier() {
  at_barrier_ = 0;
  count_result_ = std::exchange(counted_, 0);
  runtime_->checker.thread().barrier = runtime_->history.tick();
  for (unsigned t = 0; t < size_; ++t) {
    if (threads_[t].state != State::at_barrier) continue;
    threads_[t].state = State::ready;
    ready_.push_back(t);
  }
}

unsigned Block::count(bool value) {
  counted_ += value ? 1 : 0;
  barrier();
  return count_result_;
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

}  // namespace

bool run_grid(Runtime& runtime, const GridRun& run) {
  module_now = &module_of(run.body);
  dynamic_now.place.kind = MemoryKind::shared;
  dynamic_now.place.size = run.shared_bytes;
  position.grid_dim = {run.grid.x, run.grid.y, run.grid.z};
  position.block_dim = {run.block.x, run.block.y, run.block.z};
  const std::uint64_t blocks = std::uint64_t{run.grid.x} * run.grid.y * run.grid.z;
  Random& random = runtime.scheduler.random();
  const std::uint64_t step = 1 + random.below(blocks), first = random.below(blocks);
  const std::uint64_t stride = std::gcd(step, blocks) == 1 ? step : 1;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const auto b = static_cast<std::uint64_t>((first + static_cast<unsigned __int128>(i) * stride) % blocks);
    const Index index{static_cast<unsigned>(b % run.grid.x), static_cast<unsigned>(b / run.grid.x % run.grid.y),
                      static_cast<unsigned>(b / run.grid.x / run.grid.y)};
    if (!block.run(runtime, run, static_cast<std::uint32_t>(b), index)) return false;
  }
  return true;
}

void block_barrier() { block.barrier(); }
unsigned block_count(bool value) { return block.count(value); }
unsigned lane() { return block.current() % warp_lanes; }

std::uint64_t warp_exchange(WarpCall call, unsigned mask, std::uint64_t value, unsigned from) {
  return block.exchange(call, mask, value, from);
}

unsigned warp_ballot(unsigned mask, bool value) { return block.ballot(mask, value); }

void* dynamic_shared_memory() { return dynamic_bytes; }

void access_to(const void* p, std::size_t bytes, Access access) {
  if (!block.is_running()) return;
  Checker& checker = block.runtime().checker;
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  bool allowed = true;
  if (Memory::in_range(p)) allowed = checker.touch(p, bytes, access);
  else if (at - module_now->begin < module_now->end - module_now->begin)
    allowed = checker.touch_shared(module_now->shared, at - module_now->begin, bytes, access);
  else if (at - reinterpret_cast<std::uintptr_t>(dynamic_bytes) < dynamic_shared_max)
    allowed = checker.touch_shared(dynamic_now, at - reinterpret_cast<std::uintptr_t>(dynamic_bytes), bytes, access);
  if (!allowed) block.stop();
}

void atomic_access_to(const void* p, std::size_t bytes) { access_to(p, bytes, Access::atomic); }

void misaligned_access(const void* p, std::size_t alignment, const std::string& type, const std::string& where) {
  if (!block.is_running()) return;
  Runtime& runtime = block.runtime();
  const Allocation* const a = Memory::in_range(p) ? runtime.memory.find(p) : nullptr;
  report(runtime.checker.who() + " uses a misaligned pointer at " + where + ": " + type + " needs " + std::to_string(alignment) + " bytes" +
         (a != nullptr ? ", offset " + std::to_string(static_cast<const std::byte*>(p) - a->base) + " of " + a->name() : std::string{}));
  block.stop();
}

}  // namespace fakegpu
