// Entry points of libcudart.so.13: streams, events, functions of the host.

#include <algorithm>

#include "tests/fakegpu/runtime/abi.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/fakegpu/runtime/reports.hpp"

using namespace fakegpu;

namespace fakegpu {

Stream* stream_here(Runtime& r, cudaStream_t handle, const std::string& what) {
  const int device = this_thread().device;
  Stream* const stream = r.streams.find(handle, device);
  if (stream == nullptr) {
    report(what + " on a stream that does not exist, or was destroyed");
    return nullptr;
  }
  if (stream->device == device) return stream;
  report(what + " on " + stream->name() + " while device " + std::to_string(device) + " is current");
  return nullptr;
}

}  // namespace fakegpu

namespace {

cudaError_t create_stream(cudaStream_t* stream, unsigned flags, int priority) {
  return call([&](Runtime& r) {
    if ((flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) return cudaErrorInvalidValue;
    *stream = reinterpret_cast<cudaStream_t>(&r.streams.create(this_thread().device, flags, priority));
    return cudaSuccess;
  });
}

/// Runs `body` (Stream&) for a stream of any device.
template <class Body>
cudaError_t with_stream(cudaStream_t handle, const Body& body) {
  return call([&](Runtime& r) -> cudaError_t {
    Stream* const stream = r.streams.find(handle, this_thread().device);
    return stream == nullptr ? cudaErrorInvalidResourceHandle : body(r, *stream);
  });
}

}  // namespace

void fakegpu::hold_stream(void* stream, std::function<bool()> over) {
  (void)with_stream(static_cast<cudaStream_t>(stream), [&](Runtime& r, Stream& on) -> cudaError_t {
    return r.push(on, {.kind = Operation::Kind::copy, .name = "work that is held", .ready = over});
  });
}

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create_stream(stream, cudaStreamDefault, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) { return create_stream(stream, flags, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create_stream(stream, flags, priority);
}

// As on a device: what is enqueued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call(
      [&](Runtime& r) {
        if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) return cudaErrorInvalidResourceHandle;
        Stream* const stream = r.streams.find(handle, this_thread().device);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        r.streams.destroy(*stream);
        return cudaSuccess;
      },
      Lost::allow);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return with_stream(handle, [](Runtime& r, Stream& stream) { return r.synchronize(stream); });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return with_stream(handle, [](Runtime& r, Stream& stream) {
    if (stream.done < stream.pushed) r.scheduler.step();
    if (stream.done < stream.pushed) return cudaErrorNotReady;
    r.host_knows(stream.clock);
    return r.devices[static_cast<std::size_t>(stream.device)].sticky;
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  return with_stream(handle, [&](Runtime&, Stream& stream) { return *flags = stream.flags, cudaSuccess; });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return with_stream(handle, [&](Runtime&, Stream& stream) { return *priority = stream.priority, cudaSuccess; });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return with_stream(handle, [&](Runtime&, Stream& stream) { return *device = stream.device, cudaSuccess; });
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  return with_stream(handle, [&](Runtime&, Stream& stream) { return *id = stream.actor, cudaSuccess; });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return with_stream(handle, [&](Runtime&, Stream&) { return *status = cudaStreamCaptureStatusNone, cudaSuccess; });
}

// An event that was never recorded is no reason to wait. The last recording is meant, whatever is recorded later.
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  return with_stream(handle, [&](Runtime& r, Stream& stream) -> cudaError_t {
    const Event* const e = r.streams.find_event(event);
    if (e == nullptr) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<Recording> recording = e->last_recording();
    if (recording == nullptr) return cudaSuccess;
    return r.push(stream, {.kind = Operation::Kind::wait, .name = "cudaStreamWaitEvent", .recording = recording});
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return with_stream(handle, [&](Runtime& r, Stream& stream) -> cudaError_t {
    if (function == nullptr) return cudaErrorInvalidValue;
    return r.push(stream, {.kind = Operation::Kind::host_function, .name = "cudaLaunchHostFunc", .run = [=] { function(data); }});
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data, unsigned) {
  return with_stream(handle, [&](Runtime& r, Stream& stream) -> cudaError_t {
    if (function == nullptr) return cudaErrorInvalidValue;
    return r.push(stream, {.kind = Operation::Kind::host_function, .name = "cudaStreamAddCallback", .run = [=] {
                             function(handle, cudaSuccess, data);
                           }});
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call([&](Runtime& r) {
    if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0) return cudaErrorInvalidValue;
    *event = r.streams.create_event(this_thread().device, flags);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call(
      [&](Runtime& r) {
        if (r.streams.find_event(event) == nullptr) return cudaErrorInvalidResourceHandle;
        r.streams.destroy_event(event);
        return cudaSuccess;
      },
      Lost::allow);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  return with_stream(handle, [&](Runtime& r, Stream& stream) -> cudaError_t {
    Event* const e = r.streams.find_event(event);
    if (e == nullptr) return cudaErrorInvalidResourceHandle;
    if (e->device != stream.device) {
      report("an event of device " + std::to_string(e->device) + " is recorded on " + stream.name());
      return cudaErrorInvalidResourceHandle;
    }
    const auto recording = std::make_shared<Recording>();
    recording->shared = e->shared;
    if (e->shared != nullptr) recording->number = ++e->shared->recorded;
    e->latest = recording;
    return r.push(stream, {.kind = Operation::Kind::record, .name = "cudaEventRecord", .recording = recording});
  });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&](Runtime& r) -> cudaError_t {
    const Event* const e = r.streams.find_event(event);
    if (e == nullptr) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<Recording> recording = e->last_recording();  // the event may be destroyed meanwhile
    if (recording == nullptr) return cudaSuccess;
    const auto device = static_cast<std::size_t>(e->device);
    r.scheduler.wait([&] { return recording->happened(); });
    r.host_knows(recording->clock);
    return r.devices[device].sticky;  // whichever device is current
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&](Runtime& r) -> cudaError_t {
    const Event* const e = r.streams.find_event(event);
    if (e == nullptr) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<Recording> recording = e->last_recording();
    if (recording == nullptr) return cudaSuccess;
    if (!recording->happened()) r.scheduler.step();
    if (!recording->happened()) return cudaErrorNotReady;
    r.host_knows(recording->clock);
    return r.devices[static_cast<std::size_t>(e->device)].sticky;
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  return call([&](Runtime& r) -> cudaError_t {
    const Event *const b = r.streams.find_event(begin), *const e = r.streams.find_event(end);
    if (b == nullptr || e == nullptr || b->latest == nullptr || e->latest == nullptr) return cudaErrorInvalidResourceHandle;
    if (((b->flags | e->flags) & cudaEventDisableTiming) != 0) return cudaErrorInvalidResourceHandle;
    if (!b->latest->done || !e->latest->done) return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(e->latest->when - b->latest->when).count();
    return cudaSuccess;
  });
}

}  // extern "C"
