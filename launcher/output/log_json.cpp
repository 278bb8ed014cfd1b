#include "launcher/output/log_json.hpp"

#include <ctime>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lib/base/wall_time.hpp"

namespace elrun::inline v0::launcher {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(Level level) {
  switch (level) {
    case Level::debug: return "debug";
    case Level::info: return "info";
    case Level::warning: return "warning";
    case Level::error: break;
  }
  return "error";
}

}  // namespace

std::string utc(std::int64_t wall_ns) {
  const WallTime wall = wall_time(wall_ns);
  const std::time_t seconds = wall.seconds;
  std::tm time{};
  gmtime_r(&seconds, &time);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:09}Z", time.tm_year + 1900, time.tm_mon + 1, time.tm_mday, time.tm_hour,
                     time.tm_min, time.tm_sec, wall.nanoseconds);
}

std::string json_line(const LogLine& line, const LogContext& context) {
  Json json{{"time", utc(line.wall_ns)}, {"level", name_of(line.level)}, {"text", line.text}, {"who", line.who}};
  if (!context.run.empty()) json["run"] = context.run;
  if (!context.node.empty()) json["node"] = context.node;
  if (const std::uint64_t generation = context.generation; generation != 0) json["generation"] = generation;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);  // the name of a file need not be UTF-8
}

}  // namespace elrun::inline v0::launcher
