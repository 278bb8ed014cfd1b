#pragma once
/// \file A directory in /tmp that goes with the test.

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace elrun::test {

/// Made empty by the constructor; the destructor removes it with all that is in it. /tmp, so that paths of sockets in it are short enough.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error{"mkdtemp"};
  }
  ~TemporaryDirectory() {
    // The guard of an agent that was killed may remove the agent's directory in here at the same time. Each of the two ends the other's walk with an error.
    constexpr int tries_max = 100;
    std::error_code error;
    for (int i = 0; i < tries_max && std::filesystem::exists(path_, error); ++i) std::filesystem::remove_all(path_, error);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Of what is in it now.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator{path_}) names.push_back(entry.path().filename());
    return names;
  }

 private:
  std::string path_ = "/tmp/elrun-test-XXXXXX";
};

}  // namespace elrun::test
