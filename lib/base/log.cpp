#include "lib/base/log.hpp"

#include <unistd.h>

#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "lib/base/bounded_write.hpp"
#include "lib/base/fd.hpp"
#include "lib/base/printable.hpp"
#include "lib/base/wall_time.hpp"

namespace elrun::inline v0 {

void close_or_log(int fd) noexcept {
  if (::close(fd) == 0) return;
  static constexpr char text[] = "elrun: close failed; a descriptor was owned twice or its file could not be written\n";
  [[maybe_unused]] const ssize_t ignored = ::write(2, text, sizeof text - 1);
}

namespace {

const char* mark_of(Level level) { return level == Level::error ? "error: " : level == Level::warning ? "warning: " : ""; }

bool write_if_there_is_room(std::string_view lines) { return write_within(2, lines, {.first = Duration{0}, .next = 100ms}); }

}  // namespace

std::string text_line(const LogLine& line) {
  const WallTime wall = wall_time(line.wall_ns);
  const std::time_t seconds = wall.seconds;
  std::tm local{};
  localtime_r(&seconds, &local);
  return fmt::format("[{} {:02}:{:02}:{:02}.{:03}] {}{}", line.who, local.tm_hour, local.tm_min, local.tm_sec, wall.nanoseconds / 1'000'000,
                     mark_of(line.level), line.text);
}

void LogStream::set_format(Format format) {
  const std::lock_guard lock{mutex_};
  format_ = std::move(format);
}

void LogStream::set_writer(Writer writer) {
  const std::lock_guard lock{mutex_};
  writer_ = std::move(writer);
}

void LogStream::write(Level level, std::string_view who, std::string_view text) {
  const std::lock_guard lock{mutex_};
  const std::int64_t now = clock_.wall_ns();
  std::string lines;
  if (lost_ > 0)
    lines = format_({now, Level::warning, who, fmt::format("{} lines before this one were not read by anybody in time", lost_)}) + "\n";
  lines += format_({now, level, who, text}) + "\n";
  const bool written = writer_ ? writer_(lines) : write_if_there_is_room(lines);
  lost_ = written ? 0 : lost_ + 1;
}

bool LogStream::pass(std::string_view line) {
  const std::lock_guard lock{mutex_};
  return writer_ ? writer_(line) : write_if_there_is_room(line);
}

Log::Log(const Clock& clock, std::string who, Level least)
    : stream_{std::make_shared<LogStream>(clock)}, who_{std::move(who)}, least_{least} {}
Log::Log(LogStream& stream, std::string who, Level least)
    : stream_{std::shared_ptr<LogStream>{}, &stream}, who_{std::move(who)}, least_{least} {}
Log::Log(std::string who, Sink sink) : who_{std::move(who)}, least_{Level::debug}, sink_{std::move(sink)} {}

void Log::operator()(Level level, std::string_view text) const {
  if (level < least_) return;
  // A line is read on terminals, and may hold what others said: nothing in it moves a cursor or hides what stands before it.
  const auto is_plain = [](char c) { return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t'; };
  std::string shown;
  if (!std::all_of(text.begin(), text.end(), is_plain)) text = shown = printable(text, Lines::many, Bytes8::kept);
  if (stream_) stream_->write(level, who_, text);
  else sink_(level, fmt::format("{}: {}{}", who_, mark_of(level), text));
}

}  // namespace elrun::inline v0
