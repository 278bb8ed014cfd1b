#pragma once
/// \file Finds the host that touches memory of a device: such memory is closed while nothing of the device runs.

namespace fakegpu {

/// Installs the handler of SIGSEGV, and again where the program has put one of its own in front of it (test frameworks do). What is no
/// matter of the devices goes to the program's handler.
void watch_for_touches_of_the_host();

}  // namespace fakegpu
