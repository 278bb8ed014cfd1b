#pragma once
/// \file One line per fact, in one write(2), so that lines of processes never mix.

#include <functional>
#include <string>
#include <string_view>

#include "lib/base/clock.hpp"

namespace elrun::inline v0 {

enum class Level { debug, info, warning, error };

/// Where facts go. Thread-safe. `who` stands in front of every line: "elrun", "elrun rank 3 generation 12".
class Log {
 public:
  using Sink = std::function<void(Level, std::string_view line)>;
  /// Lines to standard error: `[elrun 12:34:56.789] text`, no colour.
  Log(const Clock& clock, std::string who, Level least = Level::info);
  /// Lines without newline to `sink` (a test, an event log).
  Log(std::string who, Sink sink);

  void operator()(Level level, std::string_view text) const;
  void debug(std::string_view text) const { (*this)(Level::debug, text); }
  void info(std::string_view text) const { (*this)(Level::info, text); }
  void warning(std::string_view text) const { (*this)(Level::warning, text); }
  void error(std::string_view text) const { (*this)(Level::error, text); }

 private:
  const Clock* clock_ = nullptr;
  std::string who_;
  Level least_ = Level::info;
  Sink sink_;
};

/// Says a thing when it changes, not on every tick.
class LogIfChanged {
 public:
  void operator()(const Log& log, Level level, std::string_view text) {
    if (text == last_) return;
    last_ = text;
    log(level, text);
  }

 private:
  std::string last_;
};

}  // namespace elrun::inline v0
