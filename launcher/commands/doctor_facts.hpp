#pragma once
/// \file Doctor's facts: what the options touch on this machine and behind their names. Every look has a deadline.

#include "launcher/commands/doctor.hpp"
#include "lib/base/clock.hpp"

namespace elrun::inline v0::launcher {

/// `elrun_name` is what this program was called by: an interpreter may stand beside it.
[[nodiscard]] DoctorFacts gather_facts(const DoctorOptions& options, const Variables& environment, const Clock& clock,
                                       std::string_view elrun_name);

/// `elrun doctor`: prints a line for each finding; returns the exit code.
[[nodiscard]] int run_doctor(const DoctorOptions& options, const Variables& environment, const Clock& clock, std::string_view elrun_name);

}  // namespace elrun::inline v0::launcher
