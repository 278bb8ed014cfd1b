#pragma once
/// \file Owners of streams, events and buffers of a device. Move-only; made on the device that they are told, whatever the calling thread's
/// current one is. No destructor throws, and those of streams and events wait for nobody.

#include <cstddef>
#include <span>
#include <utility>

#include <elrun/device.hpp>

namespace elrun::inline v0 {

/// A stream of its own, which waits for no other. On the host: program order.
class OwnedStream {
 public:
  OwnedStream() = default;
  /// Throws Error.
  explicit OwnedStream(Device device);
  OwnedStream(OwnedStream&& other) noexcept : stream_{std::exchange(other.stream_, Stream{})} {}
  OwnedStream& operator=(OwnedStream other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  /// What was given to the stream still runs.
  ~OwnedStream();
  [[nodiscard]] Stream view() const { return stream_; }

 private:
  Stream stream_;
};

/// A point in a stream's work, recorded as often as needed. On the host: always done.
class OwnedEvent {
 public:
  OwnedEvent() = default;
  /// Throws Error.
  explicit OwnedEvent(Device device);
  OwnedEvent(OwnedEvent&& other) noexcept : event_{std::exchange(other.event_, Event{})} {}
  OwnedEvent& operator=(OwnedEvent other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~OwnedEvent();
  [[nodiscard]] Event view() const { return event_; }
  /// What `stream`, of the same device, was given so far is what waiters wait for. Throws Error.
  void record(Stream stream);

 private:
  Event event_;
};

/// What is given to `stream` from now on runs after `event`. Throws Error. Of the host's either there is nothing to do for a done event; the host's
/// program order cannot wait for a device in this way (wait.hpp can).
void wait_in(Stream stream, Event event);

/// Memory of a device. Whoever destroys it has waited for the work that uses it (wait.hpp). CUDA's own call **waits until the device has nothing to
/// do**, so a collective that may hang there is aborted first.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Contents unspecified, aligned to 256 bytes. Throws Error (`exhausted` without memory).
  DeviceBuffer(Device device, std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_{other.device_}, data_{std::exchange(other.data_, nullptr)}, bytes_{std::exchange(other.bytes_, 0)} {}
  DeviceBuffer& operator=(DeviceBuffer other) noexcept {
    std::swap(device_, other.device_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();
  /// Addresses of the device: the host must not touch them.
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  Device device_{};
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Memory of the host that is never swapped out, so that copies between it and a device run beside the program. The rules of
/// DeviceBuffer's destructor hold.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// Contents unspecified, aligned to 256 bytes. Throws Error (`exhausted` without memory).
  PinnedBuffer(Device device, std::size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : device_{other.device_}, data_{std::exchange(other.data_, nullptr)}, bytes_{std::exchange(other.bytes_, 0)} {}
  PinnedBuffer& operator=(PinnedBuffer other) noexcept {
    std::swap(device_, other.device_), std::swap(data_, other.data_), std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedBuffer();
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  Device device_{};
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace elrun::inline v0
