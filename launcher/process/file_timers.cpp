#include "launcher/process/file_timers.hpp"

#include <cmath>
#include <csignal>
#include <limits>
#include <set>

#include <nlohmann/json.hpp>

namespace elrun::inline v0::launcher {
namespace {

constexpr int protocol = 1;

std::optional<std::int64_t> whole(const nlohmann::json& object, const char* key, std::int64_t least, std::int64_t most) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  if (found->is_number_unsigned() && found->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) return std::nullopt;
  const auto number = found->get<std::int64_t>();
  return number < least || number > most ? std::nullopt : std::optional{number};
}

}  // namespace

std::optional<TimerRequest> parse_timer(std::string_view line) {
  // The depth is bounded by the length of a line; nothing of a deeper level is kept.
  if (line.size() > timer_line_max) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(
      line, [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) { return depth <= 1; }, false);
  if (!json.is_object() || whole(json, "version", protocol, protocol) != protocol) return std::nullopt;
  const auto pid = whole(json, "pid", 1, std::numeric_limits<pid_t>::max());
  const auto signal = whole(json, "signal", 1, SIGRTMAX);
  const auto scope = json.find("scope_id"), expires = json.find("expiration_time");
  if (!pid || !signal || scope == json.end() || !scope->is_string() || expires == json.end() || !expires->is_number()) return std::nullopt;
  const double at = expires->get<double>();
  if (!std::isfinite(at)) return std::nullopt;
  return TimerRequest{*pid, scope->get<std::string>().substr(0, timer_scope_max), at, static_cast<int>(*signal)};
}

std::vector<std::string> TimerLines::feed(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (!is_skipping_ && part_.size() + piece.size() > timer_line_max) is_skipping_ = true, part_.clear();
    if (!is_skipping_) part_ += piece;
    if (end == std::string_view::npos) break;
    if (!is_skipping_) lines.push_back(std::exchange(part_, {}));
    is_skipping_ = false;
    bytes.remove_prefix(end + 1);
  }
  return lines;
}

bool FileTimers::set(const TimerRequest& request) {
  const std::pair key{request.pid, request.scope};
  if (request.expires < 0) return timers_.erase(key), true;
  if (timers_.size() >= timers_max && !timers_.contains(key)) return false;
  timers_.insert_or_assign(key, Timer{request.expires, request.signal});
  return true;
}

std::vector<TimerKill> FileTimers::expired(double now) {
  std::vector<TimerKill> kills;
  std::set<std::int64_t> late;
  for (const auto& [who, timer] : timers_)
    if (timer.expires <= now && late.insert(who.first).second) kills.push_back({who.first, timer.signal, who.second});
  std::erase_if(timers_, [&](const auto& timer) { return late.contains(timer.first.first); });
  return kills;
}

std::optional<double> FileTimers::next() const {
  std::optional<double> least;
  for (const auto& [who, timer] : timers_)
    if (!least || timer.expires < *least) least = timer.expires;
  return least;
}

}  // namespace elrun::inline v0::launcher
