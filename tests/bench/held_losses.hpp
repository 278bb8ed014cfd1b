#pragma once
/// \file What a loss costs workers whose large state trains: a part of recovery_bench. All of it on one thread.

#include <string>

namespace elrun::bench {

/// All classes of loss and placements whose question contains `only`, each `repeats_max` times at most. It prints a line for each, also for one that cannot be measured. Workers are `program` with "holder" as its
/// first argument (`hold`).
/// \param held_mb What each worker holds of parameters and moments, in 10^6 bytes. Where the machine's free memory is too small for that, half of it, and so on; the line says so.
void held_losses(const std::string& program, const std::string& only, int repeats_max, unsigned held_mb);

/// Such a worker: `program` holder ELEMENTS PLACEMENT SLOTS DIRECTORY.
/// \return The process's exit code.
int hold(int argc, char** argv);

}  // namespace elrun::bench
