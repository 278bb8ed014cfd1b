#include "tests/fakegpu/runtime/runtime.hpp"

#include <pthread.h>

#include <atomic>
#include <bit>

#include "tests/fakegpu/runtime/fault_handler.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/fakegpu/runtime/reports.hpp"

namespace fakegpu {
namespace {

std::atomic<bool> forked{false};

}  // namespace

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

Runtime::Runtime() : faults{settings().faults}, scheduler{*this, settings().seed} {
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

Runtime& Runtime::get() {
  static Runtime* const runtime = new Runtime;  // never destroyed: destructors of the program may still call
  return *runtime;
}

void Runtime::host_knows(const Clock& clock) {
  auto next = std::make_shared<Clock>(*host_clock);
  next->join(clock);
  host_clock = std::move(next);
}

cudaError_t Runtime::synchronize(Stream& stream) {
  const std::uint64_t until = stream.pushed;
  scheduler.wait([&] { return stream.done >= until; });
  host_knows(stream.clock);
  return devices[static_cast<std::size_t>(stream.device)].sticky;
}

cudaError_t Runtime::push(Stream& stream, Operation operation) {
  if (const cudaError_t lost = devices[static_cast<std::size_t>(stream.device)].sticky; lost != cudaSuccess) return lost;
  scheduler.push(stream, std::move(operation));
  scheduler.after_push();
  return cudaSuccess;
}

cudaError_t refused() {
  if (forked) return cudaErrorInitializationError;  // as the real one, in the child of a process that used it
  if (this_thread().in_host_function) return cudaErrorNotPermitted;
  watch_for_touches_of_the_host();
  switch (Runtime::get().faults.driver()) {
    case Faults::Driver::well: return settings().devices == 0 ? cudaErrorNoDevice : cudaSuccess;
    case Faults::Driver::without_device: return cudaErrorNoDevice;
    case Faults::Driver::missing:
    case Faults::Driver::old: return cudaErrorInsufficientDriver;
  }
  return cudaErrorUnknown;
}

void note_context(int device) {
  static std::atomic<std::uint32_t> made{0};
  const std::uint32_t bit = 1u << device, before = made.fetch_or(bit);
  if ((before & bit) == 0 && std::popcount(before | bit) > settings().contexts)
    report("a context is made on device " + std::to_string(device) + ", and FAKEGPU_CONTEXTS allows " +
           std::to_string(settings().contexts) + " per process");
}

cudaError_t finish(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) this_thread().last = error;
  return error;
}

Holdings holdings() {
  Runtime& r = Runtime::get();
  r.scheduler.lock();
  Holdings h{.allocations = r.memory.count(MemoryKind::device),
             .pinned = r.memory.count(MemoryKind::pinned),
             .imported = r.memory.count(MemoryKind::imported),
             .streams = r.streams.created(),
             .events = r.streams.events()};
  for (int device = 0; device < devices_max; ++device) h.device_bytes += r.memory.used(device);
  r.scheduler.unlock();
  return h;
}

std::uint64_t launch_count() {
  Runtime& r = Runtime::get();
  r.scheduler.lock();
  const std::uint64_t count = r.launches;
  r.scheduler.unlock();
  return count;
}

void set_seed(std::uint64_t seed) {
  Runtime& r = Runtime::get();
  r.scheduler.lock();
  r.scheduler.random() = Random{seed};
  r.scheduler.unlock();
}

void set_faults(const std::string& faults) {
  Runtime& r = Runtime::get();
  r.scheduler.lock();
  r.faults = Faults{faults};
  r.scheduler.unlock();
}

}  // namespace fakegpu
