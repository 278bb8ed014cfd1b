#pragma once
/// \file What goes wrong on purpose. A plan is a list, by commas:
///
///   malloc:N            the N-th allocation of device memory finds none left
///   pinned:N            the same for pinned memory
///   launch:N            the N-th launch is refused (cudaErrorLaunchOutOfResources); the device is well afterwards
///   sticky:N[:ERROR]    the N-th kernel breaks its device: from then on every call gives ERROR (700, cudaErrorIllegalAddress)
///   slow:N:MS           the N-th kernel takes MS milliseconds longer
///   stuck:N             the N-th kernel never ends
///   slow_copies:MS      each copy into pinned memory takes MS milliseconds longer
///   no_driver           as without libcuda: cudaErrorInsufficientDriver, driver version 0
///   old_driver          the same, with a driver of version 12.2
///   no_device           a driver, and no device: cudaErrorNoDevice
///   count:ERROR         counting the devices gives ERROR (999, cudaErrorUnknown: a machine on which CUDA does not start)
///   seed:S              one of the first six, at a place that S chooses
///
/// Numbers count from 1, over all devices of the process.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fakegpu {

class Faults {
 public:
  /// Ends the process with 78 where the plan cannot be understood.
  explicit Faults(const std::string& plan);

  enum class Kind : std::uint8_t { malloc, pinned, launch, sticky, slow, stuck };
  struct Fault {
    Kind kind = Kind::malloc;
    std::uint64_t at = 0;
    std::uint64_t value = 0;
  };
  /// Another event of this sort: whether it fails.
  bool next_malloc() { return hit(++mallocs_, Kind::malloc).has_value(); }
  bool next_pinned() { return hit(++pinned_, Kind::pinned).has_value(); }
  /// The faults of the launch that comes now.
  [[nodiscard]] std::vector<Fault> next_launch();

  enum class Driver : std::uint8_t { well, missing, old, without_device };
  [[nodiscard]] Driver driver() const { return driver_; }
  /// What counting the devices gives; 0: how many there are.
  [[nodiscard]] int count_error() const { return count_error_; }
  [[nodiscard]] std::chrono::milliseconds copies_longer() const { return copies_longer_; }

 private:
  [[nodiscard]] std::optional<Fault> hit(std::uint64_t count, Kind kind) const;
  void understand(const std::string& word);
  std::vector<Fault> faults_;
  Driver driver_ = Driver::well;
  int count_error_ = 0;
  std::chrono::milliseconds copies_longer_{0};
  std::uint64_t mallocs_ = 0, pinned_ = 0, launches_ = 0;
};

/// For an operation's `ready`: whether `time` has passed since the first call.
[[nodiscard]] std::function<bool()> longer_by(std::chrono::milliseconds time);

}  // namespace fakegpu
