#include "tests/fakegpu/runtime/scheduler.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "tests/fakegpu/runtime/runtime.hpp"

namespace fakegpu {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto host_is_idle_after = 1ms;   // then the background thread goes on, where the seed decides
constexpr auto asked_again_after = 200us;  // an operation that waits for another process is asked whether it can end
constexpr std::uint64_t at_once_max = 4;   // operations that run at once after one was enqueued: fewer than this, by the seed
constexpr std::uint64_t starved_max = 48;  // for how many operations a stream may be kept waiting

std::int64_t now_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void Scheduler::lock() {
  ++callers_;
  mutex_.lock();
  --callers_;
  last_call_ = now_ns();
}

void Scheduler::enqueue(Stream& stream, Operation operation) {
  operation.number = ++numbered_;
  operation.enqueued_at = runtime_.host_clock;
  stream.queue.push_back(std::move(operation));
  ++stream.pushed;
}

// CUDA's rule for streams of one device: what is enqueued on the legacy stream waits for all that is on the blocking streams, and what
// is enqueued on one of those waits for all that is on the legacy stream.
void Scheduler::order_with_legacy(Stream& stream) {
  if (!stream.legacy && !stream.blocking()) return;
  const auto wait_for = [&](Stream& first, Stream& then) {
    const auto recording = std::make_shared<Recording>();
    enqueue(first, {.kind = Operation::Kind::record, .recording = recording});
    enqueue(then, {.kind = Operation::Kind::wait, .recording = recording});
  };
  if (!stream.legacy) {
    Stream& legacy = runtime_.streams.legacy(stream.device);
    if (std::exchange(stream.waited_legacy, legacy.work) != legacy.work) wait_for(legacy, stream);
    return;
  }
  for (const auto& other : runtime_.streams.all())
    if (other->blocking() && other->device == stream.device && std::exchange(other->legacy_waited, other->work) != other->work)
      wait_for(*other, stream);
}

void Scheduler::push(Stream& stream, Operation operation) {
  order_with_legacy(stream);
  enqueue(stream, std::move(operation));
  ++stream.work;
}

void Scheduler::after_push() {
  if (settings().progress == Progress::lazy) return;
  start_background();
  if (settings().progress == Progress::eager) return changed_.notify_all();
  for (std::uint64_t n = random_.below(at_once_max); n > 0 && step(); --n) {
  }
}

bool Scheduler::can_run(const Stream& stream) const {
  if (stream.queue.empty()) return false;
  const Operation& next = stream.queue.front();
  if (runtime_.devices[static_cast<std::size_t>(stream.device)].sticky != cudaSuccess) return true;  // it will be dropped
  if (next.kind == Operation::Kind::wait) return next.recording->happened();
  if (next.ticket != nullptr && next.ticket->given_up) return true;
  if (next.start != nullptr && !next.started) return true;
  return next.ready == nullptr || next.ready();
}

Stream* Scheduler::choose() {
  std::vector<Stream*> can;
  for (const auto& stream : runtime_.streams.all())
    if (can_run(*stream)) can.push_back(stream.get());
  if (can.empty()) return nullptr;
  if (starved_for_ == 0) {
    starved_for_ = 1 + random_.below(starved_max);
    starved_ = can[random_.below(can.size())];
  }
  --starved_for_;
  if (can.size() > 1) std::erase(can, starved_);
  return can[random_.below(can.size())];
}

bool Scheduler::step() {
  if (running_) return false;
  Stream* const stream = choose();
  if (stream == nullptr) return false;
  running_ = true;
  run_turn(*stream);
  running_ = false;
  if (stream->destroyed) runtime_.streams.sweep(), starved_ = nullptr;
  return true;
}

void Scheduler::run_turn(Stream& stream) {
  Operation& operation = stream.queue.front();
  const bool lost = runtime_.devices[static_cast<std::size_t>(stream.device)].sticky != cudaSuccess;
  stream.clock.join(*operation.enqueued_at);
  bool over = true;
  switch (operation.kind) {
    case Operation::Kind::wait: stream.clock.join(operation.recording->clock); break;
    case Operation::Kind::record:
      operation.recording->done = true;
      if (operation.recording->shared != nullptr) operation.recording->shared->done = operation.recording->number;
      operation.recording->clock = stream.clock;
      operation.recording->when = steady_clock::now();
      break;
    default:
      if (lost) break;
      if (operation.past == 0) {
        const std::uint32_t epoch = stream.clock.advance(stream.actor);
        operation.past = runtime_.history.begin({stream.actor, epoch, 0, operation.number, stream.number, stream.device}, operation.name);
      } else {
        runtime_.history.go_on(operation.past);
      }
      if (operation.kind == Operation::Kind::host_function) {
        runtime_.host_knows(stream.clock);  // it may tell a thread that waits for it
        run_host_function(operation);
        break;
      }
      // A copy needs no peer access: it goes through the host where there is none.
      runtime_.checker.begin(operation.past, stream.clock,
                             operation.kind == Operation::Kind::copy ? ~0u : runtime_.reachable_from(stream.device));
      over = operation.start == nullptr || operation.started || operation.ticket->given_up;
      if (!run_on_memory(operation)) runtime_.devices[static_cast<std::size_t>(stream.device)].sticky = cudaErrorIllegalAddress;
      runtime_.checker.end();
      runtime_.memory.close_all();
  }
  if (!over) return;
  if (operation.ticket != nullptr) operation.ticket->over = true, operation.ticket->clock = stream.clock;
  stream.queue.pop_front();
  ++stream.done;
  changed_.notify_all();
}

// A turn of any operation but a host function. Only operations of other libraries have more than one turn, and can be given up.
// False: it was not run, for it goes where it must not go.
bool Scheduler::run_on_memory(Operation& operation) {
  Checker& checker = runtime_.checker;
  if (operation.ticket != nullptr && operation.ticket->given_up) {
    for (const Range& range : operation.writes) {
      if (!checker.touch_range(range, Access::write)) continue;
      auto* bytes = static_cast<unsigned char*>(const_cast<void*>(range.begin));
      for (std::size_t i = 0; i < range.bytes; ++i) bytes[i] = static_cast<unsigned char>(random_.next());
    }
    runtime_.history.at(operation.past).given_up = true;
    return true;
  }
  bool may = true;
  for (const Range& range : operation.reads) may = checker.touch_range(range, Access::read) && may;
  if (operation.start != nullptr && !operation.started) {
    operation.started = true;
    if (may) operation.start();
    return may;
  }
  for (const Range& range : operation.writes) may = checker.touch_range(range, Access::write) && may;
  if (operation.run != nullptr && may) operation.run();
  return may;
}

// The function may take locks of the program, whose owners may be inside of a call: so not under ours.
void Scheduler::run_host_function(const Operation& operation) {
  const auto run = operation.run;
  mutex_.unlock();
  this_thread().in_host_function = true;
  run();
  this_thread().in_host_function = false;
  mutex_.lock();
}

void Scheduler::wait(const std::function<bool()>& done) {
  std::unique_lock lock{mutex_, std::adopt_lock};
  while (!done()) {
    if (!step()) changed_.wait_for(lock, asked_again_after);
    else if (callers_ > 0) lock.unlock(), std::this_thread::yield(), lock.lock();
  }
  lock.release();
}

bool Scheduler::pending() const {
  return std::ranges::any_of(runtime_.streams.all(), [](const auto& s) { return !s->queue.empty(); });
}

void Scheduler::start_background() {
  if (std::exchange(background_started_, true)) return;
  sigset_t all, before;  // the program's signals are for the program's threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread{[this] { background(); }}.detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Scheduler::background() {
  const bool eager = settings().progress == Progress::eager;
  std::unique_lock lock{mutex_};
  while (true) {
    const bool idle = eager || now_ns() - last_call_ > std::chrono::nanoseconds{host_is_idle_after}.count();
    if (callers_ == 0 && idle && step()) continue;
    if (callers_ > 0) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else if (pending()) {
      changed_.wait_for(lock, idle ? asked_again_after : host_is_idle_after);
    } else {
      changed_.wait_for(lock, eager ? 100ms : 2ms);
    }
  }
}

}  // namespace fakegpu
