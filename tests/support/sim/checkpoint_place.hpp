#pragma once
/// \file Where the checkpoints of a simulated job are, as the world around its processes sees it: a file system that loses what was not synced, or an object store.

#include <memory>
#include <vector>

#include <elrun/philox.hpp>

#include "checkpoint/commit/root.hpp"
#include "checkpoint/tiers/tier.hpp"
#include "lib/base/clock.hpp"
#include "tests/support/faults.hpp"
#include "tests/support/manual_clock.hpp"

namespace elrun::checkpoint_sim {

class CheckpointPlace {
 public:
  virtual ~CheckpointPlace() = default;
  [[nodiscard]] virtual test::Faults& faults() = 0;
  /// As process `number` has it.
  [[nodiscard]] virtual std::unique_ptr<Tier> tier(std::uint64_t number, const Saver& saver) = 0;

  [[nodiscard]] virtual std::vector<Path> all_files() const = 0;
  [[nodiscard]] virtual ByteVector content(const Path& path) const = 0;
  virtual void overwrite(const Path& path, ByteVector content) = 0;
  virtual void remove(const Path& path) = 0;
  virtual void power_loss(Rng& rng) = 0;
  virtual void heal() = 0;  ///< From here on nothing is lost on the way.
};

[[nodiscard]] std::unique_ptr<CheckpointPlace> file_system(const Path& root);
/// `lists_are_stale`: and no client waits until they are not, which a tier has to.
[[nodiscard]] std::unique_ptr<CheckpointPlace> object_store(const Path& root, ManualClock& clock, std::uint64_t seed, bool lists_are_stale);

}  // namespace elrun::checkpoint_sim
