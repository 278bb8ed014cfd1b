#pragma once
/// \file Launchers as real processes: their output as it comes, signals, exit codes; every wait has a deadline.

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.hpp"

namespace elrun::test {

/// Of 10 s and more, it is one that only a failing test waits for: it grows by ELRUN_TEST_TIME_FACTOR, as ctest's time-outs do.
using Wait = std::chrono::milliseconds;

/// A number that outlives its process: knows whether that very process still runs.
class Watch {
 public:
  explicit Watch(pid_t pid);
  Watch(Watch&& other) noexcept;
  Watch& operator=(Watch&&) = delete;
  ~Watch();
  /// True once the process has ended (a zombie has), false when it still runs after `wait`.
  [[nodiscard]] bool ended(Wait wait) const;

 private:
  friend class Job;
  [[nodiscard]] bool ended_by(std::chrono::steady_clock::time_point until) const;
  int pidfd_ = -1;  // -1: was gone at once
};

/// One process with its output and error in one stream, line by line where a narrow pipe is part of it. Killed by the destructor if it
/// still runs.
class Job {
 public:
  struct Setting {
    std::vector<std::string> arguments;
    std::map<std::string, std::string> environment{};  ///< Over PATH and the sanitizers' variables, which are all it gets.
    std::string program = "elrun";                     ///< In build/bin, unless it is a path.
    bool narrow = false;  ///< It also reads what is written to the pipe $NARROW_PIPE, in small pieces; the pipe holds one page.
  };
  explicit Job(Setting setting);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// The first line not yet returned that contains `text`; nothing when the output ends or the time is over before.
  std::optional<std::string> line(const std::string& text, Wait wait = Wait{60000});
  /// The exit code as a shell tells it, -1 when it still runs after `wait`. Reads the output to its end.
  int wait(Wait wait = Wait{90000});
  /// All that has been read so far.
  [[nodiscard]] const std::string& output() const { return output_; }
  [[nodiscard]] bool says(const std::string& text) const { return output_.find(text) != std::string::npos; }
  /// Its child processes, watched from now on.
  [[nodiscard]] std::vector<Watch> children() const;
  /// Its living child processes of this name, in the order of their numbers.
  [[nodiscard]] std::vector<pid_t> children_named(const std::string& name) const;

 private:
  /// One of the pipes that are read here.
  struct Source {
    int pipe = -1;
    std::string rest;  ///< The begin of a line.
  };
  bool read_some(std::chrono::steady_clock::time_point until);
  bool read_from(Source& source, std::size_t at_most);
  void make_narrow_pipe();
  pid_t pid_ = -1;
  std::optional<TemporaryDirectory> directory_;  // of the narrow pipe
  Source own_, narrow_;
  bool ended_ = false;
  int code_ = -1;
  std::string output_;
  std::size_t seen_ = 0;
};

/// The text of /proc/`pid`/`file`; empty when there is no such process, or it ends meanwhile.
[[nodiscard]] std::string text_of_process(const std::string& pid, const std::string& file);

/// The number after `name=` in a line.
[[nodiscard]] std::int64_t number_after(const std::string& line, const std::string& name);

/// The number in an agent's line about its part of a generation that begins, "[elrun ...] generation 2: 1 node, ..."; 0 in any other.
[[nodiscard]] std::int64_t generation_in(const std::string& line);

/// The path of a program in build/bin (ELRUN_BIN, or where this test's own build has it); what is a path already stays as it is.
[[nodiscard]] std::string program_path(const std::string& name);
/// Of a program in build/tests.
[[nodiscard]] std::string test_program_path(const std::string& name);
/// Of a file in the source tree (ELRUN_SOURCE).
/// \throws std::runtime_error where that is not set.
[[nodiscard]] std::string source_path(const std::string& name);

/// A port that is free, and stays so until a program of this test's takes it: no other test on this machine is given it before this process ends, and it is none
/// of those that the kernel gives to who connects or binds to port 0.
[[nodiscard]] std::uint16_t free_port();

}  // namespace elrun::test
