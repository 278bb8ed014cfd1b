#pragma once
/// \file Shell: what a rehearsal needs of this machine beyond processes: a network for each node, and a small disk that may be filled.
///
/// Networks are network namespaces without names: they go with the processes that hold them. Disks are file systems in memory, mounted in a
/// mount namespace of this process and of what it starts: nobody else sees them, and they go with it. The file that fills one is made
/// through a descriptor that was opened on it when it was mounted, so nothing else can be filled, whatever becomes of its path.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <elrun/result.hpp>

#include "launcher/chaos/chaos_options.hpp"
#include "launcher/process/child.hpp"
#include "lib/base/fd.hpp"

namespace elrun::inline v0::launcher {

/// Why a kind cannot be rehearsed with this job here, or is not drawn unless it is named.
struct KindProblem {
  FaultKind kind = FaultKind::kill;
  std::string why;
  bool is_possible = false;  ///< It can be asked for by name.
};
/// Of all kinds; at most one each. Tries what it has to, and leaves nothing behind.
[[nodiscard]] std::vector<KindProblem> kind_problems(const ChaosOptions& options);

/// A directory with a file system of its own in memory, of a fixed size. Unmounted by the destructor.
class SmallDisk {
 public:
  /// Makes the directory. `leave_mounts_to_others` was called before.
  static Result<SmallDisk> mount(const std::string& directory, std::uint64_t bytes);
  SmallDisk(SmallDisk&&) = default;
  SmallDisk& operator=(SmallDisk&&) = default;
  ~SmallDisk();

  /// Until nothing more can be written.
  [[nodiscard]] Result<void> fill() const;
  void make_room() const;

 private:
  SmallDisk(std::string path, Fd root, std::uint64_t bytes) : path_{std::move(path)}, root_{std::move(root)}, bytes_{bytes} {}
  std::string path_;
  Fd root_;
  std::uint64_t bytes_ = 0;
};
/// What this process mounts from now on is seen by it and by what it starts alone. Before there are threads.
[[nodiscard]] Result<void> leave_mounts_to_others();

/// A network for each node, joined by a bridge in one of its own. Nothing of it is on the machine's network.
class NodeNetworks {
 public:
  /// `nodes` networks. What holds them lives as long as this object, or its guard.
  static Result<std::unique_ptr<NodeNetworks>> make(boost::asio::io_context& loop, const Guard& guard, const Variables& environment,
                                                    std::uint32_t nodes);
  /// Puts words in front of a command, so that it runs in the network of this node; of the bridge, for `nodes`.
  [[nodiscard]] std::vector<std::string> inside(std::uint32_t node, std::vector<std::string> command) const;
  /// Of this node, or of the bridge for `nodes`.
  [[nodiscard]] static std::string address(std::uint32_t node);
  [[nodiscard]] Result<void> cut(std::uint32_t node) const;
  [[nodiscard]] Result<void> mend(std::uint32_t node) const;

 private:
  NodeNetworks() = default;
  [[nodiscard]] Result<void> run_inside(std::uint32_t node, std::vector<std::string> command) const;
  std::vector<std::unique_ptr<Child>> holders_;  // of each node's network, and last of the bridge's
};

}  // namespace elrun::inline v0::launcher
