#pragma once
/// \file What several processes say, each line with the time at which it was read.

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/spawn.hpp"

namespace elrun::test {

/// Reads the output of all jobs that it follows whenever it waits, so that none of them stands still with a full pipe.
class TimedOutput {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Line {
    Time when;
    const void* by;  ///< Whoever follow() was given.
    std::string text;
  };
  using Condition = std::function<bool(const Line&)>;

  /// From its first line on. `by` may be followed again with another job, and the old one is read no more.
  void follow(const void* by, Job& job) { followed_[by] = {&job, 0}; }
  void forget(const void* by) { followed_.erase(by); }

  /// The first line from number `from` on for which `condition` holds.
  [[nodiscard]] std::optional<Line> wait_for(const Condition& condition, std::size_t from, Wait wait) {
    const Time until = std::chrono::steady_clock::now() + wait;
    for (std::size_t next = from;;) {
      for (; next < lines_.size(); ++next)
        if (condition(lines_[next])) return lines_[next];
      if (std::chrono::steady_clock::now() > until) return std::nullopt;
      if (!read()) std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
  }
  /// Reads until `holds`; false when it does not in time.
  [[nodiscard]] bool wait_until(const std::function<bool()>& holds, Wait wait) {
    const Time until = std::chrono::steady_clock::now() + wait;
    while (!holds()) {
      if (std::chrono::steady_clock::now() > until) return false;
      if (!read()) std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
    return true;
  }
  /// Reads for so long.
  void listen(Wait wait) {
    (void)wait_for([](const Line&) { return false; }, lines_.size(), wait);
  }
  [[nodiscard]] const std::vector<Line>& lines() const { return lines_; }

 private:
  struct Followed {
    Job* job = nullptr;
    std::size_t seen = 0;
  };
  bool read() {
    const std::size_t before = lines_.size();
    for (auto& [by, followed] : followed_) {
      (void)followed.job->line("\n", Wait{0});  // reads what is there: no line holds one
      const std::string& output = followed.job->output();
      const Time now = std::chrono::steady_clock::now();
      for (std::size_t end; (end = output.find('\n', followed.seen)) != std::string::npos; followed.seen = end + 1)
        lines_.push_back({now, by, output.substr(followed.seen, end - followed.seen)});
    }
    return lines_.size() != before;
  }

  std::map<const void*, Followed> followed_;
  std::vector<Line> lines_;
};

}  // namespace elrun::test
