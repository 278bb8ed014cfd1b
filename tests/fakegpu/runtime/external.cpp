#include "tests/fakegpu/runtime/external.hpp"

#include "tests/fakegpu/runtime/reports.hpp"
#include "tests/fakegpu/runtime/runtime.hpp"

namespace fakegpu {
namespace {

/// What is wrong with a range that an operation of `stream` names; empty when it is well.
std::string problem(Runtime& r, const Range& range) {
  if (range.bytes == 0) return {};
  if (!Memory::in_range(range.begin)) return "memory that is neither a device's nor pinned";
  const Allocation* const a = r.memory.near(range.begin);
  if (a == nullptr) return "an address where nothing is allocated";
  if (a->freed) return a->name();
  if (!a->contains(range.begin, range.bytes))
    return std::to_string(range.bytes) + " bytes from offset " + std::to_string(static_cast<const std::byte*>(range.begin) - a->base) +
           " of " + a->name();
  return {};
}

}  // namespace

cudaError_t enqueue(cudaStream_t handle, ExternalOperation operation, TicketPtr* ticket) {
  return call([&](Runtime& r) -> cudaError_t {
    Stream* const stream = r.streams.find(handle, this_thread().device);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->device != this_thread().device) {
      report(operation.name + " is put on " + stream->name() + " while device " + std::to_string(this_thread().device) + " is current");
      return cudaErrorInvalidResourceHandle;
    }
    for (const auto* ranges : {&operation.reads, &operation.writes})
      for (const Range& range : *ranges)
        if (const std::string what = problem(r, range); !what.empty()) {
          report(operation.name + " on " + stream->name() + (ranges == &operation.reads ? " is to read " : " is to write ") + what);
          return cudaErrorInvalidValue;
        }
    const auto mine = std::make_shared<Ticket>();
    if (ticket != nullptr) *ticket = mine;
    return r.push(*stream, {.kind = Operation::Kind::external,
                            .name = std::move(operation.name),
                            .reads = std::move(operation.reads),
                            .writes = std::move(operation.writes),
                            .start = std::move(operation.start),
                            .ready = std::move(operation.ready),
                            .run = std::move(operation.run),
                            .ticket = mine});
  });
}

void give_up(const TicketPtr& ticket) {
  Scheduler& scheduler = Runtime::get().scheduler;
  scheduler.lock();
  if (!ticket->over) ticket->given_up = true;
  scheduler.wake();
  scheduler.unlock();
}

bool is_over(const TicketPtr& ticket) {
  Scheduler& scheduler = Runtime::get().scheduler;
  scheduler.lock();
  const bool over = ticket->over;
  scheduler.unlock();
  return over;
}

void host_has_waited(const TicketPtr& ticket) {
  Runtime& r = Runtime::get();
  r.scheduler.lock();
  r.host_knows(ticket->clock);
  r.scheduler.unlock();
}

void wake() { Runtime::get().scheduler.wake(); }

void make_progress(std::size_t operations) {
  Scheduler& scheduler = Runtime::get().scheduler;
  scheduler.lock();
  while (operations > 0 && scheduler.step()) --operations;
  scheduler.unlock();
}

int device_of(const void* pointer) {
  if (!Memory::in_range(pointer)) return -1;
  Runtime& r = Runtime::get();
  r.scheduler.lock();
  const Allocation* const a = r.memory.find(pointer);
  const int device = a == nullptr || a->kind == MemoryKind::pinned ? -1 : a->device;
  r.scheduler.unlock();
  return device;
}

int device_of_stream(cudaStream_t handle) {
  Runtime& r = Runtime::get();
  r.scheduler.lock();
  const Stream* const stream = r.streams.find(handle, this_thread().device);
  const int device = stream == nullptr ? -1 : stream->device;
  r.scheduler.unlock();
  return device;
}

std::uint64_t random_below(std::uint64_t bound) {
  Scheduler& scheduler = Runtime::get().scheduler;
  scheduler.lock();
  const std::uint64_t n = scheduler.random().below(bound);
  scheduler.unlock();
  return n;
}

}  // namespace fakegpu
