#include "launcher/report/error_record.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/report/endings.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::int64_t second_ns = 1'000'000'000;
constexpr std::int64_t seconds_max = 9'000'000'000;  // the year 2255, still a number of nanoseconds: what is later is no time of a worker

const nlohmann::json* find(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at != object.end() ? &*at : nullptr;
}

std::string text_of(const nlohmann::json* value) {
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string{};
}

// A number, or one in quotes as torch writes it.
std::optional<std::int64_t> seconds_of(const nlohmann::json* value) {
  std::int64_t seconds = -1;
  if (value == nullptr) return {};
  if (value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    if (std::from_chars(text.data(), text.data() + text.size(), seconds).ec != std::errc{}) return {};
  } else if (value->is_number()) {
    const double number = value->get<double>();
    if (!(number >= 0 && number <= static_cast<double>(seconds_max))) return {};
    seconds = static_cast<std::int64_t>(number);
  }
  if (seconds < 0 || seconds > seconds_max) return {};
  return seconds;
}

// The line that tells what went wrong is the last of a traceback.
std::string last_line(std::string_view text) {
  const auto end = text.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos) return {};
  text = text.substr(0, end + 1);
  const auto begin = text.find_last_of('\n');
  return std::string{begin == std::string_view::npos ? text : text.substr(begin + 1)};
}

std::string as_one_line(std::string text) {
  text.resize(std::min(text.size(), death_line_max));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

}  // namespace

std::optional<ErrorRecord> read_error_record(std::string_view text) {
  if (text.size() > error_record_max) return {};
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const nlohmann::json* message = json.is_discarded() ? nullptr : find(json, "message");
  if (message == nullptr) return {};
  ErrorRecord record;
  if (message->is_string()) {
    record.error = last_line(text_of(message));
    if (!record.error.empty() && text_of(message).find('\n') != std::string::npos) record.traceback = text_of(message);
    record.seconds = seconds_of(find(json, "timestamp"));
  } else if (message->is_object()) {
    record.error = text_of(find(*message, "message"));
    if (const nlohmann::json* extra = find(*message, "extraInfo")) {
      record.traceback = text_of(find(*extra, "py_callstack"));
      record.seconds = seconds_of(find(*extra, "timestamp"));
    }
    if (record.error.empty()) record.error = last_line(record.traceback);
  }
  if (record.error.empty() && record.traceback.empty()) return {};
  record.error = as_one_line(std::move(record.error));
  return record;
}

std::string error_record_of(const WorkerDeath& death) {
  const std::string error =
      !death.error.empty() ? death.error
      : death.lived()      ? fmt::format("rank {} on {} cannot go on: {}", death.rank, death.host, death.evidence)
                           : fmt::format("rank {} on {} ended by {}", death.rank, death.host, describe({death.exit_code, death.signal}));
  const nlohmann::json record{{"message",
                               {{"message", error},
                                {"errorCode", death.signal != 0 ? -death.signal : death.exit_code},
                                {"extraInfo",
                                 {{"py_callstack", !death.traceback.empty() ? death.traceback : death.last_lines},
                                  {"timestamp", std::to_string(death.wall_ns / second_ns)}}}}}};
  return record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::int64_t failed_at(const ErrorRecord& record, const RecordTimes& times) {
  if (times.started >= times.ended) return times.ended;  // the clock was set back meanwhile
  if (!record.seconds) return std::clamp(times.written, times.started, times.ended);
  const std::int64_t begin = *record.seconds * second_ns;
  if (begin <= times.started - second_ns || begin > times.ended) return times.ended;
  // Written in the next second it was still raised in this one; much later it is no longer the writing of the failure.
  const std::int64_t raised =
      times.written >= begin && times.written < begin + 2 * second_ns ? std::min(times.written, begin + second_ns - 1) : begin;
  return std::clamp(raised, times.started, times.ended);
}

}  // namespace elrun::inline v0::launcher
