#pragma once
/// \file Where memory is and in which order work on it runs. Values; nothing here includes CUDA.

#include <compare>
#include <cstdint>

namespace elrun::inline v0 {

enum class DeviceKind : std::uint8_t { host, cuda };

struct Device {
  DeviceKind kind = DeviceKind::host;
  int index = 0;  ///< The CUDA ordinal among the visible devices; 0 on the host.
  friend constexpr auto operator<=>(const Device&, const Device&) = default;
};

/// A view of an order of work: a `cudaStream_t` on a device, program order on the host. Owns nothing. Work for a device refuses the host's.
class Stream {
 public:
  /// Program order of the calling thread: work is done when the call returns.
  constexpr Stream() = default;
  /// `handle` is a `cudaStream_t`; it outlives every call that gets this view.
  constexpr Stream(Device device, void* handle) : device_{device}, handle_{handle} {}
  [[nodiscard]] constexpr Device device() const { return device_; }
  [[nodiscard]] constexpr void* handle() const { return handle_; }

 private:
  Device device_{};
  void* handle_ = nullptr;
};

/// A view of a point in a stream's work, which another stream or a thread can wait for: a `cudaEvent_t` on a device. Owns nothing.
class Event {
 public:
  /// On the host: work is done when the call returns, so nobody waits.
  constexpr Event() = default;
  /// `handle` is a `cudaEvent_t`; it outlives every call that gets this view.
  constexpr Event(Device device, void* handle) : device_{device}, handle_{handle} {}
  [[nodiscard]] constexpr Device device() const { return device_; }
  [[nodiscard]] constexpr void* handle() const { return handle_; }

 private:
  Device device_{};
  void* handle_ = nullptr;
};

/// One float that may still be on its way: read by the runtime in the stream's order, without a synchronisation here.
struct DeviceScalar {
  const float* pointer = nullptr;  ///< In the memory of `stream.device()`; what the stream is given after the report may change it.
  Stream stream{};
};

}  // namespace elrun::inline v0
