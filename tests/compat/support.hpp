#pragma once
/// \file What the compatibility tests share: agents of one machine, programs to run under them, and torch, if it is here.

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/options/options.hpp"
#include "lib/base/fd.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/spawn.hpp"

namespace elrun::test {

/// A wait that no healthy run comes near, on a slow machine under a sanitizer.
constexpr Wait patience{120'000};

inline std::string program_of_test(const std::string& name) { return source_path("tests/compat/programs/" + name); }
inline std::string sample(const std::string& name) { return source_path("samples/torch/" + name); }

/// Of ELRUN_TORCH_PYTHON, else the system's.
inline std::string torch_python() {
  const char* chosen = std::getenv("ELRUN_TORCH_PYTHON");
  return chosen == nullptr ? "/usr/bin/python3" : chosen;
}

/// Whether there is that Python; says why a case is skipped where there is none.
inline bool has_python() {
  const bool found = std::filesystem::exists(torch_python());
  if (!found) std::printf("SKIPPED: there is no %s\n", torch_python().c_str());
  return found;
}

/// Whether there is a torch with gloo; says why a case is skipped where there is none. Asked once.
inline bool has_torch() {
  static const bool found = [] {
    if (!std::filesystem::exists(torch_python())) return false;
    Job job{{.arguments = {"-c", "import torch.distributed as d; assert d.is_available()"}, .program = torch_python()}};
    return job.wait(patience) == 0;
  }();
  if (!found) std::printf("SKIPPED: %s has no torch (Debian: python3-torch)\n", torch_python().c_str());
  return found;
}

inline std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline std::size_t reported_times(const std::string& output, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = output.find(text, at)) != std::string::npos; at += text.size()) ++count;
  return count;
}

/// What the first text between `name` and a blank or the line's end is; empty when the line does not have it.
inline std::string word_after(const std::string& line, const std::string& name) {
  const auto at = line.find(name + "=");
  if (at == std::string::npos) return {};
  const auto begin = at + name.size() + 1;
  return line.substr(begin, line.find_first_of(" \n", begin) - begin);
}

/// Whether a program can listen here at this moment, without allowing the reuse of addresses.
inline bool is_free(std::uint16_t port) {
  const Fd door{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  return door && ::bind(door.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

/// A port for workers that is free, and so is the one beside it, 10,000 below, at which static nodes meet. That one no other test is given; neither is one that
/// the kernel gives to connections (32768 and up).
inline std::uint16_t free_master_port() {
  for (;;) {
    const std::uint16_t meeting = free_port();
    const auto port = static_cast<std::uint16_t>(meeting + 10'000);
    if (meeting < 22'700 && is_free(port) && launcher::meeting_port_beside(port) == meeting) return port;
  }
}

/// Agents that meet at one endpoint of this machine, and a folder that is theirs.
struct Meeting {
  TemporaryDirectory folder;
  std::uint16_t port = free_port();
  [[nodiscard]] std::string endpoint() const { return "127.0.0.1:" + std::to_string(port); }

  /// An agent that does not meet anybody: `options` and the program after them.
  [[nodiscard]] Job::Setting alone(std::vector<std::string> options, std::map<std::string, std::string> environment = {}) const {
    environment.try_emplace("XDG_RUNTIME_DIR", folder.path());
    environment.try_emplace("PYTHON_EXEC", torch_python());
    return {.arguments = std::move(options), .environment = std::move(environment)};
  }
  /// `options` (and the program) behind those that make it one of `nodes`.
  [[nodiscard]] Job::Setting node(const std::string& nodes, const std::vector<std::string>& options,
                                  std::map<std::string, std::string> environment = {}) const {
    return alone(joined({"--nnodes", nodes, "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint(), "--rdzv_id", "job"}, options),
                 std::move(environment));
  }
};

using Variables = std::map<std::string, std::string>;

/// The environment that tests/compat/programs/environment.sh left for a rank; empty when it did not run.
inline Variables environment_of(const std::string& folder, const std::string& rank) {
  std::ifstream file{folder + "/" + rank, std::ios::binary};
  Variables variables;
  for (std::string entry; std::getline(file, entry, '\0');)
    if (const auto equals = entry.find('='); equals != std::string::npos)
      variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
  return variables;
}

/// A worker that leaves its environment in the folder.
inline std::vector<std::string> leave_environment(const std::string& folder) {
  return {"--no_python", "/bin/sh", program_of_test("environment.sh"), folder};
}

}  // namespace elrun::test
