#pragma once
/// \file Shell: a root as tools read it. Nothing is written, claimed or marked, so a read-only root will do.

#include <string>

#include <elrun/result.hpp>

#include "checkpoint/tools/choose.hpp"
#include "checkpoint/tools/inspection.hpp"
#include "checkpoint/tools/listing.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// Fails with `not_found` where `root` is no checkpoint root.
[[nodiscard]] Result<RootFacts> read_root(Files& files, const Clock& clock, const std::string& root);

/// One checkpoint of a root that was read.
struct ReadCheckpoint {
  RootFacts facts;
  CheckpointId id;
  Path directory;
};
/// A root whose own name ends like `ROOT:STEP` is that root, and no checkpoint of another.
[[nodiscard]] CheckpointName settled(Files& files, CheckpointName name);
/// The one that `name` means; of a root alone the one from which a start would go on, else the newest committed. Fails with `not_found`
/// where there is none.
[[nodiscard]] Result<ReadCheckpoint> find_checkpoint(Files& files, const Clock& clock, const CheckpointName& name);

/// What its records say. Damage of COMMIT, and records of another checkpoint, are told (`problem`) and no failure; without a manifest that can be read it fails.
[[nodiscard]] Result<Inspection> inspect(Files& files, const ReadCheckpoint& checkpoint);

}  // namespace elrun::inline v0
