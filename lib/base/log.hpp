#pragma once
/// \file One line per fact, in one write(2), so that lines of processes never mix.

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "lib/base/clock.hpp"
#include "lib/base/log_line.hpp"

namespace elrun::inline v0 {

/// `[elrun 12:34:56.789] warning: text`, no colour.
[[nodiscard]] std::string text_line(const LogLine& line);

/// How lines look and where they go: as text to standard error, unless it is told otherwise. Shared by Logs; thread-safe. A
/// reader that stops reading (a pager, a stuck collector) must not stop the loop that supervises: what finds no room is lost,
/// and the next line that does comes after one that says how many were.
class LogStream {
 public:
  using Format = std::function<std::string(const LogLine&)>;  ///< Without newline
  using Writer = std::function<bool(std::string_view line)>;  ///< Of a line with its newline; false: there is no room
  explicit LogStream(const Clock& clock, Format format = text_line) : clock_{clock}, format_{std::move(format)} {}
  LogStream(const LogStream&) = delete;
  LogStream& operator=(const LogStream&) = delete;

  void set_format(Format format);
  /// `nullptr`: to standard error again.
  void set_writer(Writer writer);
  void write(Level level, std::string_view who, std::string_view text);
  /// A line with its newline as it is, where the others go; false: there is no room.
  bool pass(std::string_view line);

 private:
  const Clock& clock_;
  std::mutex mutex_;
  unsigned lost_ = 0;  // lines
  Format format_;
  Writer writer_;
};

/// Where facts go. Thread-safe. `who` stands in front of every line: "elrun", "elrun rank 3 generation 12".
class Log {
 public:
  using Sink = std::function<void(Level, std::string_view line)>;
  /// Lines as text to standard error.
  Log(const Clock& clock, std::string who, Level least = Level::info);
  /// Lines to a stream that others write to as well; it must outlive this.
  Log(LogStream& stream, std::string who, Level least = Level::info);
  /// Lines without newline to `sink` (a test, an event log).
  Log(std::string who, Sink sink);

  void operator()(Level level, std::string_view text) const;
  void debug(std::string_view text) const { (*this)(Level::debug, text); }
  void info(std::string_view text) const { (*this)(Level::info, text); }
  void warning(std::string_view text) const { (*this)(Level::warning, text); }
  void error(std::string_view text) const { (*this)(Level::error, text); }

 private:
  std::shared_ptr<LogStream> stream_;  // none: to sink_
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
