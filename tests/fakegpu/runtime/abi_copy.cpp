// Entry points of libcudart.so.13: copies and memsets.

#include <atomic>
#include <cstring>
#include <memory>

#include "tests/fakegpu/runtime/abi.hpp"
#include "tests/fakegpu/runtime/inspect.hpp"
#include "tests/fakegpu/runtime/reports.hpp"

using namespace fakegpu;

namespace {

/// Where one end of a copy lies.
enum class Place { pageable, pinned, device, wrong };

Place place_of(Runtime& r, const void* p, std::size_t bytes, const std::string& what) {
  if (!Memory::in_range(p)) return Place::pageable;
  const Allocation* const a = r.memory.near(p);
  if (a != nullptr && !a->freed && a->contains(p, bytes)) return a->kind == MemoryKind::pinned ? Place::pinned : Place::device;
  const std::string where = a == nullptr ? "an address where nothing is allocated"
                                         : "offset " + std::to_string(static_cast<const std::byte*>(p) - a->base) + " of " + a->name();
  report(what + ": " + std::to_string(bytes) + " bytes at " + where);
  return Place::wrong;
}

bool fits(cudaMemcpyKind kind, Place to, Place from) {
  const bool to_device = to == Place::device, from_device = from == Place::device;
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return !from_device && to != Place::pageable;
    case cudaMemcpyDeviceToHost: return !to_device && from != Place::pageable;
    case cudaMemcpyDeviceToDevice: return to != Place::pageable && from != Place::pageable;
    default: return kind == cudaMemcpyDefault;
  }
}

/// The source in pinned memory when a copy was enqueued. It must be the same when the copy runs.
std::uint64_t sum_of(const void* p, std::size_t bytes) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  const auto* at = static_cast<const unsigned char*>(p);
  for (std::size_t i = 0; i < bytes; ++i) sum = (sum ^ at[i]) * 0x100000001b3u;
  return sum;
}

/// Whether a copy that has not run yet reads some of it. What kernels read is not known before they run.
bool is_still_read(const Runtime& r, const void* p, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(p);
  for (const auto& stream : r.streams.all())
    for (const Operation& each : stream->queue)
      for (const Range& range : each.reads) {
        const auto* const first = static_cast<const std::byte*>(range.begin);
        if (first < begin + bytes && begin < first + range.bytes) return true;
      }
  return false;
}

std::atomic<bool> pageable_late{false};

/// Memory that is not pinned is written before the call returns. As a rule it is read before that, too, which no document promises.
cudaError_t copy(Runtime& r, Stream& stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0) return cudaSuccess;
  const std::string name = "a copy of " + std::to_string(bytes) + " bytes";
  const Place target = place_of(r, to, bytes, name + " writes outside of any allocation");
  const Place source = place_of(r, from, bytes, name + " reads outside of any allocation");
  if (target == Place::wrong || source == Place::wrong) return cudaErrorInvalidValue;
  if (!fits(kind, target, source)) {
    report(name + " on " + stream.name() + ": its kind (" + std::to_string(kind) + ") is not where the memory lies");
    return cudaErrorInvalidValue;
  }
  Operation operation{.kind = Operation::Kind::copy, .name = name, .reads = {{from, bytes}}, .writes = {{to, bytes}}};
  if (source == Place::pageable && pageable_late) {
    operation.reads.clear();
    operation.run = [=] { std::memcpy(to, from, bytes); };
  } else if (source == Place::pageable) {
    const auto staged = std::make_shared<std::vector<std::byte>>(bytes);
    std::memcpy(staged->data(), from, bytes);
    operation.reads.clear();
    operation.run = [=] { std::memcpy(to, staged->data(), bytes); };
  } else if (source == Place::pinned) {
    const std::uint64_t before = sum_of(from, bytes);
    operation.run = [=, where = stream.name()] {
      if (sum_of(from, bytes) != before)
        report("pinned memory was changed by the host after " + name + " from it was enqueued on " + where + ", and before that ran");
      std::memmove(to, from, bytes);
    };
  } else {
    operation.run = [=] { std::memmove(to, from, bytes); };
  }
  if (target == Place::pinned && r.faults.copies_longer().count() > 0) operation.ready = longer_by(r.faults.copies_longer());
  // Whoever reads it too early sees that it is not there yet.
  if (target == Place::pinned && !is_still_read(r, to, bytes)) std::memset(to, 0xff, bytes);
  if (const cudaError_t error = r.push(stream, std::move(operation)); error != cudaSuccess) return error;
  return target == Place::pageable ? r.synchronize(stream) : cudaSuccess;
}

cudaError_t copy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t handle, bool wait) {
  return call([&](Runtime& r) -> cudaError_t {
    Stream* const stream = r.streams.find(handle, this_thread().device);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = copy(r, *stream, to, from, bytes, kind); error != cudaSuccess) return error;
    return wait ? r.synchronize(*stream) : cudaSuccess;
  });
}

cudaError_t set_async(void* p, int value, std::size_t bytes, cudaStream_t handle) {
  return call([&](Runtime& r) -> cudaError_t {
    Stream* const stream = r.streams.find(handle, this_thread().device);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    const std::string name = "a memset of " + std::to_string(bytes) + " bytes";
    const Place target = place_of(r, p, bytes, name + " writes outside of any allocation");
    if (target == Place::wrong || target == Place::pageable) return cudaErrorInvalidValue;
    return r.push(*stream,
                  {.kind = Operation::Kind::copy, .name = name, .writes = {{p, bytes}}, .run = [=] { std::memset(p, value, bytes); }});
  });
}

cudaError_t copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width, std::size_t rows,
                      cudaMemcpyKind kind, cudaStream_t stream, bool wait) {
  if (width > to_pitch || width > from_pitch) return finish(cudaErrorInvalidPitchValue);
  for (std::size_t row = 0; row < rows; ++row) {
    auto* const target = static_cast<std::byte*>(to) + row * to_pitch;
    const auto* const source = static_cast<const std::byte*>(from) + row * from_pitch;
    if (const cudaError_t error = copy_async(target, source, width, kind, stream, wait); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_async(to, from, bytes, kind, stream, false);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return copy_async(to, from, bytes, kind, nullptr, true);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes, cudaStream_t stream) {
  return copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, stream, false);
}

cudaError_t cudaMemcpyPeer(void* to, int, const void* from, int, std::size_t bytes) {
  return copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr, true);
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width, std::size_t rows,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return copy_rows(to, to_pitch, from, from_pitch, width, rows, kind, stream, false);
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width, std::size_t rows,
                         cudaMemcpyKind kind) {
  return copy_rows(to, to_pitch, from, from_pitch, width, rows, kind, nullptr, true);
}

cudaError_t cudaMemsetAsync(void* p, int value, std::size_t bytes, cudaStream_t stream) { return set_async(p, value, bytes, stream); }

// The real one does not wait either.
cudaError_t cudaMemset(void* p, int value, std::size_t bytes) { return set_async(p, value, bytes, nullptr); }

}  // extern "C"

void fakegpu::set_pageable_late(bool late) { pageable_late = late; }
