#pragma once
/// \file A mount of the test's own, which goes with it.

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "tests/support/catch.hpp"

namespace elrun::test {

/// Unmounted by the destructor. Where nothing can be mounted (no right to, no such file system) the test says so and ends.
class Mounted {
 public:
  /// What lies at `path` stays there, and cannot be written.
  static std::optional<Mounted> read_only(const std::string& path) {
    if (!says_done(::mount(path.c_str(), path.c_str(), nullptr, MS_BIND, nullptr))) return std::nullopt;
    Mounted mounted{path};
    REQUIRE(::mount(nullptr, path.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0);
    return mounted;
  }
  /// An empty file system in memory. `options`: as "size=64m".
  static std::optional<Mounted> tmpfs(const std::string& path, const char* options, unsigned long flags = 0) {
    if (!says_done(::mount("elrun-test", path.c_str(), "tmpfs", flags, options))) return std::nullopt;
    return Mounted{path};
  }
  /// The same, and one that takes no writes past the page cache.
  static std::optional<Mounted> ramfs(const std::string& path) {
    if (!says_done(::mount("elrun-test", path.c_str(), "ramfs", 0, nullptr))) return std::nullopt;
    return Mounted{path};
  }
  Mounted(Mounted&& other) noexcept : path_{std::exchange(other.path_, {})} {}
  Mounted(const Mounted&) = delete;
  Mounted& operator=(const Mounted&) = delete;
  Mounted& operator=(Mounted&&) = delete;
  ~Mounted() {
    if (!path_.empty()) (void)::umount2(path_.c_str(), MNT_DETACH);
  }

 private:
  explicit Mounted(std::string path) : path_{std::move(path)} {}
  static bool says_done(int result) {
    if (result != 0) WARN("SKIPPED: nothing can be mounted here: " << std::strerror(errno));
    return result == 0;
  }
  std::string path_;
};

}  // namespace elrun::test
