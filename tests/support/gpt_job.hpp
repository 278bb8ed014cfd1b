#pragma once
/// \file The gpt sample as the tests run it: a small model on a text that is made here, so that its hash can be pinned.

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <elrun/philox.hpp>

#include "tests/support/program.hpp"

namespace elrun::test {

/// A directory that goes with the test.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/elrun-test-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

/// `words` words drawn from a seed: the same text everywhere.
inline void write_text(const std::string& path, std::uint64_t seed, unsigned words = 4000) {
  static constexpr const char* vocabulary[] = {"rank ", "shard ", "the ", "of ", "a ", "step\n", "world ", "and ", "leaves ", "returns.\n"};
  Rng rng{seed};
  std::ofstream out{path, std::ios::binary};
  for (unsigned i = 0; i < words; ++i) out << vocabulary[rng.below(std::size(vocabulary))];
}

inline std::string binary(const std::string& name) {
  const char* folder = std::getenv("ELRUN_BIN");
  return (folder != nullptr ? std::string{folder} : "build/bin") + "/" + name;
}

inline bool full_campaign() { return std::getenv("ELRUN_FULL") != nullptr; }

/// What every program of these tests gets: nothing of the surroundings but the path and the sanitizers' options.
inline std::vector<std::string> environment(std::vector<std::string> more = {}) {
  more.push_back("PATH=/usr/local/bin:/usr/bin:/bin");
  for (const char* name : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"})
    if (const char* value = std::getenv(name)) more.push_back(std::string{name} + "=" + value);
  return more;
}

/// The sample's arguments: a model of 21,696 weights, 8 slots per step.
inline std::vector<std::string> gpt_arguments(const std::string& data, unsigned steps, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"--data", data, "--layers", "1", "--channels", "32", "--heads", "2", "--context", "32",
                                     "--global-batch", "8", "--micro-batch", "1", "--seed", "7", "--steps", std::to_string(steps)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

/// A program whose standard error is in its output too: `/bin/sh` joins them and becomes it.
inline std::vector<std::string> joined(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> out{"-c", "exec \"$@\" 2>&1", "sh", program};
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

/// How a program ended and what it said.
struct Ended {
  int code = -1;
  std::string output;
  std::string state;  ///< Of its last `done` line.
  [[nodiscard]] bool says(const std::string& text) const { return output.find(text) != std::string::npos; }
};

/// A started program whose lines are read one by one.
class Talking {
 public:
  Talking(const std::string& program, const std::vector<std::string>& arguments, std::vector<std::string> variables = {})
      : program_{"/bin/sh", joined(program, arguments), environment(std::move(variables))} {}

  [[nodiscard]] pid_t pid() const { return program_.pid(); }
  void kill(int signal) const { program_.kill(signal); }

  /// Reads until a line holds `text`; false when the output ended, or the time was over, before.
  bool until(const std::string& text, std::chrono::milliseconds limit = std::chrono::seconds{60}) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (const auto line = next(end))
      if (line->find(text) != std::string::npos) return true;
    return false;
  }
  /// Reads what comes until then.
  void listen(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (next(end)) {
    }
  }
  Ended finish(std::chrono::milliseconds limit = std::chrono::seconds{100}) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (next(end)) {
    }
    ended_.code = program_.wait(std::max(std::chrono::milliseconds{1}, left(end)));
    return ended_;
  }
  [[nodiscard]] const std::string& output() const { return ended_.output; }

 private:
  static std::chrono::milliseconds left(std::chrono::steady_clock::time_point end) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  }
  std::optional<std::string> next(std::chrono::steady_clock::time_point end) {
    auto line = program_.line(std::max(std::chrono::milliseconds{0}, left(end)));
    if (!line) return {};
    ended_.output += *line + "\n";
    if (const auto at = line->find(" state="); line->starts_with("done ") && at != std::string::npos) ended_.state = line->substr(at + 7);
    return line;
  }
  Program program_;
  Ended ended_;
};

inline Ended run(const std::string& program, const std::vector<std::string>& arguments, std::vector<std::string> variables = {}) {
  return Talking{program, arguments, std::move(variables)}.finish();
}

/// `elrun ARGUMENTS --no_python gpt ...`
inline std::vector<std::string> under_elrun(std::vector<std::string> options, const std::vector<std::string>& gpt) {
  options.insert(options.end(), {"--no_python", binary("gpt")});
  options.insert(options.end(), gpt.begin(), gpt.end());
  return options;
}

/// Living children of `parent` that run the program `name`.
inline std::vector<pid_t> children(pid_t parent, const std::string& name) {
  std::vector<pid_t> out;
  DIR* directory = ::opendir("/proc");
  REQUIRE(directory != nullptr);
  while (const dirent* entry = ::readdir(directory)) {
    std::ifstream stat{std::string{"/proc/"} + entry->d_name + "/stat"};
    std::string text;
    if (!std::getline(stat, text)) continue;
    const auto open = text.find('('), close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos || text.substr(open + 1, close - open - 1) != name) continue;
    const char* rest = text.c_str() + close + 2;
    if (*rest != 'Z' && std::strtol(rest + 2, nullptr, 10) == parent) out.push_back(static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10)));
  }
  ::closedir(directory);
  std::sort(out.begin(), out.end());
  return out;
}

/// A TCP port of the loopback interface that nobody has now.
inline std::string free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  ::close(fd);
  return std::to_string(ntohs(address.sin_port));
}

}  // namespace elrun::test
