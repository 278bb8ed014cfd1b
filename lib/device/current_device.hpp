#pragma once
/// \file CurrentDevice: the calling thread's current device, for a scope.

#include <elrun/device.hpp>

namespace elrun::inline v0 {

/// CUDA keeps a current device for each thread, 0 at first, and takes work for streams of that device alone. Whoever gives work to a device
/// says so with one of these. On the host it does nothing. Stays on its thread.
class CurrentDevice {
 public:
  /// Throws Error. The first in a process on this device makes its context (some 0.3 s, and memory there).
  explicit CurrentDevice(Device device);
  /// Puts back the one before.
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = -1;  // -1: nothing to put back
};

/// Makes it the calling thread's current device for good. For threads of elrun's own, and the program's: putting back device 0, which a thread has at first, would make a
/// context there, which takes memory of a device that is another worker's. On the host it does nothing. Throws Error.
void keep_current(Device device);

}  // namespace elrun::inline v0
