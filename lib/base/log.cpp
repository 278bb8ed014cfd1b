#include "lib/base/log.hpp"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

#include <fmt/format.h>

#include "lib/base/fd.hpp"

namespace elrun::inline v0 {

void close_or_log(int fd) noexcept {
  if (::close(fd) == 0) return;
  static constexpr char text[] = "elrun: close failed; a descriptor was owned twice or its file could not be written\n";
  [[maybe_unused]] const ssize_t ignored = ::write(2, text, sizeof text - 1);
}

Log::Log(const Clock& clock, std::string who, Level least) : clock_{&clock}, who_{std::move(who)}, least_{least} {}
Log::Log(std::string who, Sink sink) : who_{std::move(who)}, least_{Level::debug}, sink_{std::move(sink)} {}

void Log::operator()(Level level, std::string_view text) const {
  if (level < least_) return;
  const char* mark = level == Level::error ? "error: " : level == Level::warning ? "warning: " : "";
  if (sink_) return sink_(level, fmt::format("{}: {}{}", who_, mark, text));
  const std::int64_t wall = clock_->wall_ns();
  const std::time_t seconds = wall / 1'000'000'000;
  std::tm local{};
  localtime_r(&seconds, &local);
  const std::string line = fmt::format("[{} {:02}:{:02}:{:02}.{:03}] {}{}\n", who_, local.tm_hour, local.tm_min, local.tm_sec,
                                       wall / 1'000'000 % 1000, mark, text);
  // A reader that stops reading (a pager, a stuck collector) must not stop the loop that supervises: what finds no room
  // is lost, and the next line that does says how many were.
  static std::atomic<unsigned> lost = 0;
  pollfd room{2, POLLOUT, 0};
  if (::poll(&room, 1, 0) == 0) {
    ++lost;
    return;
  }
  std::string out;
  if (const unsigned count = lost.exchange(0); count > 0) out = fmt::format("[{}] {} lines before this one were not read by anybody in time\n", who_, count);
  out += line;
  [[maybe_unused]] const ssize_t ignored = ::write(2, out.data(), out.size());
}

}  // namespace elrun::inline v0
