#include "lib/job/fp_environment.hpp"

#include <cfenv>
#include <limits>

namespace elrun::inline v0 {

std::optional<std::string> fp_environment_problem() {
  if (std::fegetround() != FE_TONEAREST)
    return "the calling thread does not round to nearest; call std::fesetround(FE_TONEAREST) before next_step(), and let no slot change it";
  // By what arithmetic does, not by a register: the same on every architecture.
  volatile float smallest_normal = std::numeric_limits<float>::min();
  volatile float half = smallest_normal * 0.5f;  // zero when results are flushed
  volatile float denormal = std::numeric_limits<float>::denorm_min();
  volatile float same = denormal * 1.0f;  // zero when operands are
  if (half == 0.0f || same == 0.0f)
    return "the calling thread flushes denormal numbers to zero, which changes the bits; something set it, usually a "
           "library "
           "built with -ffast-math: build it without, or clear the mode before next_step(), and let no slot set it";
  return std::nullopt;
}

}  // namespace elrun::inline v0
