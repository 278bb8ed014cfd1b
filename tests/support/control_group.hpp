#pragma once
/// \file The control groups of one emulated container: a limit of memory that the kernel enforces, and a freezer.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace elrun::test {

/// One group in each hierarchy that this machine offers (memory and freezer of version 1, or one of version 2 for both). It goes with the object, with whatever still
/// runs in it thawed: a frozen process does not die.
class ControlGroup {
 public:
  explicit ControlGroup(const std::string& name);
  ~ControlGroup();
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  /// Lines of a shell that put the shell into the group; empty where there is none.
  [[nodiscard]] std::string enter() const;
  /// Lines of a shell in a mount namespace of its own without /sys/fs/cgroup: what a container sees there.
  [[nodiscard]] std::string show() const;
  /// False where this machine has no memory controller to give.
  [[nodiscard]] bool limit_memory(std::uint64_t bytes) const;
  /// Processes of the group that the kernel has killed for want of memory.
  [[nodiscard]] std::uint64_t oom_kills() const;
  /// What its processes hold by the kernel's count, which lags behind the end of one of them. In bytes.
  [[nodiscard]] std::uint64_t memory_in_use() const;
  /// False where this machine has no freezer. Returns when all processes of the group stand still.
  [[nodiscard]] bool freeze() const;

  /// The groups of this name, whoever made them.
  static void thaw(const std::string& name);
  /// Removes the groups of this name, whoever made them. \throws std::runtime_error where a process is left in one.
  static void take_away(const std::string& name);
  /// Names of groups that begin so.
  [[nodiscard]] static std::vector<std::string> names(const std::string& begin);

 private:
  std::filesystem::path memory_, freezer_;  // empty: none
};

}  // namespace elrun::test
