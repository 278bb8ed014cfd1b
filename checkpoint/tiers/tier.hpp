#pragma once
/// \file The seam for tiers: all that a save, a start and a removal need of a place that keeps checkpoints, above Files and not inside. A file system
/// has it (files_tier.hpp); an object store, peers' memory and a local disk can. Names are relative to the root, with `/` between their parts.
///
/// The promises are those that all of these can keep: there is no second name for bytes, and nothing that was kept is ever written over.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <elrun/result.hpp>
#include <elrun/units.hpp>

#include "lib/base/bytes.hpp"
#include "lib/base/files.hpp"

namespace elrun::inline v0 {

/// Every call may block for as long as the storage does, and is done when it returns: what succeeded survives a power loss, where nothing else is said. After a
/// failure with `io`, `unreachable` or `deadline_passed` nobody knows whether it took effect. What can be asked from several threads at once says its class.
class Tier {
 public:
  virtual ~Tier() = default;

  // --- what is there ---

  /// What has this name, for reads of any ranges, from several threads at once: `read_at` fails with `corrupt` where it ends before. `not_found` where there is none, `corrupt` for what can
  /// never be read. Never stale.
  virtual Result<std::unique_ptr<ReadableFile>> open(const std::string& name) = 0;
  /// Names directly under `directory` (empty: the root), sorted: all that were there when this was called, and none that was gone by then. One that comes or goes meanwhile may be
  /// among them. `not_found` where nothing was ever made. A store whose lists are stale waits in here until this is true: decisions rest on what is absent.
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  /// For this user.
  virtual Result<Bytes> space_left() = 0;
  /// A name as people know it.
  [[nodiscard]] virtual std::string where(std::string_view name) const = 0;
  /// What this machine is configured to have, and has not, so that the root looks empty; empty: there is no such thing, or nobody knows.
  virtual std::string missing_mount() { return {}; }

  // --- what is kept ---

  /// From then on `directory` can be listed and kept in; with all above it, the root among them.
  virtual Result<void> make_directories(const std::string& directory) = 0;
  /// The same for one that nobody had: of several who make it at once one succeeds. `already_exists` for the others.
  virtual Result<void> make_directory(const std::string& directory) = 0;
  /// The commit of everything: the name appears, whole, if it is absent; of several who publish at once one succeeds. `already_exists` when the name holds
  /// something else; the same content is success, for one's own reply may have been lost.
  virtual Result<void> publish(const std::string& name, ByteSpan bytes) = 0;
  /// Keeps a part under a name that nobody had, for names are used once. Until this succeeds others may see some of it, so a part is read by those who know its checksum from elsewhere.
  /// After a failure this name is not tried again.
  virtual Result<void> put(const std::string& name, ByteSpan bytes) = 0;
  /// The same for what is large, and written in pieces in any order. Complete when `sync` and `close` succeed; **it survives a power loss after the next `put` or `publish` in its directory.**
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& name) = 0;
  /// What others have published in a directory, and may have died before they knew, survives a power loss.
  virtual Result<void> make_durable(const std::string& directory);

  // --- what is removed ---

  /// Gone for good when it returns, or never there. What is removed in two calls is removed in their order. Follows no link out of the root.
  virtual Result<void> remove(const std::string& name) = 0;
  /// What nobody needs, as far as that goes: it may come back after a power loss, as may what it says.
  virtual Result<void> discard(const std::string& name);
  /// A directory that is vouched for by nobody, with all that is in it, in any order, as far as that goes. None is no failure.
  virtual Result<void> remove_all(const std::string& directory) = 0;
  /// The same for a large one that was a checkpoint: it is out of the lists before its bytes are gone.
  virtual Result<void> throw_away(const std::string& directory);
  /// What a crash has left of `throw_away`.
  virtual Result<void> empty_trash();
  /// Whatever has this name, readable or not, has the other one from then on, in place of what had that: for what is damaged. Others may have made the first name anew meanwhile. It may be undone by a power loss: then it is set aside again.
  virtual Result<void> set_aside(const std::string& name, const std::string& other) = 0;

  /// All of it, if it is no longer than `max`.
  Result<ByteVector> get_all(const std::string& name, Bytes max);
};

/// The name of what is in a directory; that of the root is empty.
[[nodiscard]] std::string name_in(std::string_view directory, std::string_view name);

}  // namespace elrun::inline v0
