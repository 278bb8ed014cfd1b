#pragma once
/// \file Waiting on the host for work on a device: by looking, never inside CUDA, for a call of CUDA's cannot be told that the generation is over.

#include <functional>
#include <string_view>

#include <elrun/device.hpp>
#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/clock.hpp"

namespace elrun::inline v0 {

struct EventWait {
  std::string_view what;         ///< What is waited for: "the norm of step 12".
  std::function<bool()> over{};  ///< Whether the generation has been revoked; none: nobody revokes. From the calling thread.
  Deadline deadline;
};

/// Success: all that was recorded is done. Looks without a pause for 20 µs, then every 50 µs. Fails with `generation_over` (rejoin) once `over`, with
/// `deadline_passed` (exit_process: the work is still there, and may never end), and with what the device failed of (kernels/cuda/errors.hpp).
[[nodiscard]] Result<void> wait_for(Event event, const EventWait& wait, const Clock& clock);

}  // namespace elrun::inline v0
