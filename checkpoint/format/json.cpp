#include "checkpoint/format/json.hpp"

#include <set>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/format/corrupt.hpp"
#include "lib/base/crc32c.hpp"
#include "lib/base/planted.hpp"

namespace elrun::inline v0 {
namespace {

const Json& nothing() {
  static const Json empty = Json::array();
  return empty;
}

}  // namespace

Result<Json> parse_json(ByteSpan text, std::string_view what) {
  // The parser is iterative, so depth costs heap, not stack; the bound keeps what walks the value later safe as well.
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (!problem.empty()) return false;
    if (depth > json_depth_max) problem = "is nested too deeply";
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == Json::parse_event_t::key && (keys.empty() || !keys.back().insert(parsed.get<std::string>()).second))
      problem = fmt::format("has the key {} twice", parsed.dump(-1, ' ', false, Json::error_handler_t::replace));
    return problem.empty();
  };
  Json value = Json::parse(as_text(text).begin(), as_text(text).end(), watch, /*allow_exceptions=*/false);
  if (!problem.empty()) return corrupt(fmt::format("{} {}", what, problem));
  if (value.is_discarded()) return corrupt(fmt::format("{} is not valid JSON", what));
  return value;
}

std::string canonical(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string seal(const Json& body) {
  const std::string text = canonical(body);
  return fmt::format("{{\"body\":{},\"crc32c\":\"{}\"}}\n", text, hex32(crc32c(as_bytes(text))));
}

Result<Json> unseal(ByteSpan text, std::string_view what) {
  ELRUN_TRY_ASSIGN(Json value, parse_json(text, what));
  if (!value.is_object() || value.size() != 2 || !value.contains("body") || !value["body"].is_object())
    return corrupt(fmt::format("{} is not a sealed record", what));
  Json body = std::move(value["body"]);
  // Comparing the whole text leaves no byte outside the checksum.
  if (seal(body) != as_text(text) && !ELRUN_PLANTED(checksum_of_the_manifest_skipped))
    return corrupt(fmt::format("{} does not match its checksum", what));
  return body;
}

bool is_plain_text(std::string_view text, std::size_t max) {
  if (text.empty() || text.size() > max) return false;
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  try {
    (void)Json(text).dump();  // the one UTF-8 check there is
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

std::string as_plain_text(std::string_view text) {
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(quoted, nullptr, false).get<std::string>();
}

std::string hex32(std::uint32_t value) { return fmt::format("{:08x}", value); }
std::string hex64(std::uint64_t value) { return fmt::format("{:016x}", value); }

Fields::Fields(const Json& object, std::string where, std::string& problem)
    : object_{&object}, where_{std::move(where)}, problem_{&problem} {
  if (!object.is_object()) complain("is not an object");
}

void Fields::complain(std::string_view about) const {
  if (problem_->empty()) *problem_ = fmt::format("{} {}", where_, about);
}

const Json* Fields::find(const char* key) const {
  if (!problem_->empty()) return nullptr;
  const auto at = object_->find(key);
  if (at != object_->end()) return &*at;
  complain(fmt::format("has no {}", key));
  return nullptr;
}

bool Fields::has(const char* key) const { return object_->is_object() && object_->contains(key); }

std::uint64_t number_of(const Json& value, std::uint64_t max, const Fields& owner) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= max) return value.get<std::uint64_t>();
  owner.complain(fmt::format("has a number that is not an integer in 0 .. {}", max));
  return 0;
}

std::uint64_t Fields::number(const char* key, std::uint64_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return 0;
  if (value->is_number_unsigned() && value->get<std::uint64_t>() <= max) return value->get<std::uint64_t>();
  complain(fmt::format("has a {} that is not an integer in 0 .. {}", key, max));
  return 0;
}

std::string Fields::text(const char* key, std::size_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string() && value->get_ref<const std::string&>().size() <= max) return value->get<std::string>();
  complain(fmt::format("has a {} that is not a text of at most {} bytes", key, max));
  return {};
}

std::uint64_t Fields::hex(const char* key, std::size_t digits) const {
  const std::string digit_text = text(key, digits);
  std::uint64_t value = 0;
  bool good = digit_text.size() == digits;
  for (const char c : digit_text) {
    const bool decimal = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    good = good && (decimal || letter);
    value = value << 4 | static_cast<std::uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  if (!good) complain(fmt::format("has a {} that is not {} hexadecimal digits", key, digits));
  return good ? value : 0;
}

const Json& Fields::list(const char* key, std::size_t max) const {
  const Json* value = find(key);
  if (value == nullptr) return nothing();
  if (value->is_array() && value->size() <= max) return *value;
  complain(fmt::format("has a {} that is not a list of at most {}", key, max));
  return nothing();
}

Fields Fields::object(const char* key) const {
  const Json* value = find(key);
  return Fields{value != nullptr ? *value : nothing(), fmt::format("{}.{}", where_, key), *problem_};
}

}  // namespace elrun::inline v0
