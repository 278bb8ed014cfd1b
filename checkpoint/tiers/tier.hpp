#pragma once
/// \file The seam for tiers: what a save, a start and a removal need of a place that keeps checkpoints, above Files and not inside. A file system
/// has it (files_tier.hpp); an object store, peers' memory and a local disk can. Names are relative to the root, with `/` between their parts.
///
/// The promises are those that all of these can keep. There is no rename, no second name for bytes, and nothing is ever written over.

#include <cstdint>
#include <string>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

/// Every call may block for as long as the storage does, and is done when it returns: what succeeded survives a power loss. After a failure with
/// `io`, `unreachable` or `deadline_passed` nobody knows whether it took effect.
class Tier {
 public:
  virtual ~Tier() = default;

  /// Keeps a part under a name that nobody had, for names are used once. Not visible to `list` and `get` before it is whole. After a failure this name is not tried again.
  virtual Result<void> put(const std::string& name, ByteSpan bytes) = 0;
  /// The commit of everything: the name appears, whole, if it is absent; of several who publish at once one succeeds. `already_exists` when the name holds
  /// something else; the same content is success, for one's own reply may have been lost.
  virtual Result<void> publish(const std::string& name, ByteSpan bytes) = 0;
  /// Names directly under `directory`, sorted: of what was put or published, and of directories that have any. None where there is nothing.
  /// What this process wrote is there; what others wrote may be missing for `stale_for`, what they removed be there.
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  /// Exactly these bytes; `corrupt` where the object ends before, `not_found` where there is none. Never stale for a name that was never missed.
  virtual Result<ByteVector> get(const std::string& name, std::uint64_t offset, std::uint64_t length) = 0;
  virtual Result<std::uint64_t> size(const std::string& name) = 0;
  /// Gone for good when it returns, or never there. What is removed in two calls is removed in their order.
  virtual Result<void> remove(const std::string& name) = 0;
  /// How long a list may be stale. A decision that rests on what is absent waits for so long.
  [[nodiscard]] virtual Duration stale_for() const = 0;

  /// All of it, if it is no longer than `max`.
  Result<ByteVector> get_all(const std::string& name, Bytes max);
};

}  // namespace elrun::inline v0
