#pragma once
/// \file When a call has to be over.

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// Of a whole call, however many transfers it is made of.
struct CallLimit {
  Deadline at;
  Duration whole;  ///< From the call's begin until `at`, for messages.
  [[nodiscard]] static CallLimit from(Instant now, Duration whole) { return {Deadline::after(now, whole), whole}; }
};

}  // namespace elrun::inline v0
