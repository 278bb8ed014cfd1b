#pragma once
/// \file Program: a small program of the tests as a real process, without fork: arguments, environment, output, end.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

namespace elrun::test {

class Program {
 public:
  /// `environment` holds `NAME=value`, and is all that the program gets.
  Program(const std::string& path, std::vector<std::string> arguments, std::vector<std::string> environment) {
    int pipe[2];
    REQUIRE(::pipe2(pipe, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
    arguments.insert(arguments.begin(), path);
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> out;
      for (std::string& text : texts) out.push_back(text.data());
      out.push_back(nullptr);
      return out;
    };
    const int error = posix_spawn(&pid_, path.c_str(), &actions, nullptr, pointers(arguments).data(), pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    ::close(pipe[1]);
    output_ = pipe[0];
    INFO(path);
    REQUIRE(error == 0);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (!status_) kill(SIGKILL), (void)::waitpid(pid_, nullptr, 0);
    ::close(output_);
  }

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill(int signal) const { (void)::kill(pid_, signal); }

  /// The next line of its output; nothing at its end or when the time is over.
  std::optional<std::string> line(std::chrono::milliseconds wait = std::chrono::seconds{60}) {
    const auto until = std::chrono::steady_clock::now() + wait;
    for (;;) {
      if (const auto end = buffer_.find('\n'); end != std::string::npos) {
        std::string text = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return text;
      }
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      pollfd ready{output_, POLLIN, 0};
      if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) return {};
      char chunk[4096];
      const ssize_t count = ::read(output_, chunk, sizeof chunk);
      if (count <= 0) return {};
      buffer_.append(chunk, static_cast<std::size_t>(count));
    }
  }

  /// Its exit code, 128 + n after signal n, -1 when it has not ended in time.
  int wait(std::chrono::milliseconds limit = std::chrono::seconds{60}) {
    if (!status_) {
      const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
      pollfd ended{pidfd, POLLIN, 0};
      const bool over = ::poll(&ended, 1, static_cast<int>(limit.count())) == 1;
      ::close(pidfd);
      if (!over) return -1;
      int status = 0;
      REQUIRE(::waitpid(pid_, &status, 0) == pid_);
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return *status_;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string buffer_;
  std::optional<int> status_;
};

}  // namespace elrun::test
