#pragma once
/// \file Stall: time in which the coordinator itself did not run, and what it does to deadlines of others. Pure.

#include <elrun/units.hpp>

namespace elrun::inline v0 {

/// A stop of this process that has just ended: what others sent meanwhile is read after it.
struct Stall {
  Duration length;
  Instant end;
  /// Whoever had until `deadline` when it began has as long from its end on. What was over before stays over.
  void excuse(Instant& deadline) const {
    if (deadline > end - length) deadline += length;
  }
};

}  // namespace elrun::inline v0
