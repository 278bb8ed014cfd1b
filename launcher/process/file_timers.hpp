#pragma once
/// \file File timers: torch's watchdog protocol. A process writes by when it will have done something; whoever is late is
/// killed. Pure: lines and time in, kills out.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elrun::inline v0::launcher {

constexpr std::size_t timer_line_max = 4096;  ///< What a pipe takes as a whole; a longer line is skipped.
constexpr std::size_t timers_max = 65536;     ///< Under way at one time; one more is refused.
constexpr std::size_t timer_scope_max = 256;  ///< Bytes of a timer's name that are kept.

/// One line of the pipe: `{"version":1,"pid":12,"scope_id":"a","expiration_time":1700000000.5,"signal":9}`.
struct TimerRequest {
  std::int64_t pid = 0;
  std::string scope;
  double expires = 0;  ///< Seconds since 1970; below 0: the timer is taken back
  int signal = 0;
  friend bool operator==(const TimerRequest&, const TimerRequest&) = default;
};

/// Nothing for a line that no client of the protocol writes.
[[nodiscard]] std::optional<TimerRequest> parse_timer(std::string_view line);

/// Cuts what comes through the pipe into lines.
class TimerLines {
 public:
  /// The lines that `bytes` complete, without those that are too long.
  [[nodiscard]] std::vector<std::string> feed(std::string_view bytes);

 private:
  std::string part_;
  bool is_skipping_ = false;
};

/// A process whose timer is over, and the signal that it gets.
struct TimerKill {
  std::int64_t pid = 0;
  int signal = 0;
  std::string scope;
  friend bool operator==(const TimerKill&, const TimerKill&) = default;
};

class FileTimers {
 public:
  /// False when there are too many timers already.
  bool set(const TimerRequest& request);
  /// Processes with a timer that is over, each once; all their timers are forgotten.
  [[nodiscard]] std::vector<TimerKill> expired(double now);
  /// When the next one is over; nothing when there is none.
  [[nodiscard]] std::optional<double> next() const;
  /// Forgets the timers of processes of which `is_here` does not know.
  template <class IsHere>
  void keep(IsHere is_here) {
    std::erase_if(timers_, [&](const auto& timer) { return !is_here(timer.first.first); });
  }
  [[nodiscard]] std::size_t size() const { return timers_.size(); }

 private:
  struct Timer {
    double expires = 0;
    int signal = 0;
  };
  std::map<std::pair<std::int64_t, std::string>, Timer> timers_;
};

}  // namespace elrun::inline v0::launcher
