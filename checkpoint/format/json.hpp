#pragma once
/// \file JSON from a file that anybody may have written: bounded in size and depth, no key twice, integers below 2^53,
/// and never an exception. What the checkpoint writes itself is canonical (sorted keys, no spaces), so that one byte
/// more or less is a different text.

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <elrun/result.hpp>

#include "lib/base/bytes.hpp"

namespace elrun::inline v0 {

using Json = nlohmann::json;

constexpr std::uint64_t json_integer_max = (std::uint64_t{1} << 53) - 1;
constexpr int json_depth_max = 16;

/// `what` names the text in the failure ("/ckpt/RUN.json").
[[nodiscard]] Result<Json> parse_json(ByteSpan text, std::string_view what);
/// Canonical text; every string in `value` is valid UTF-8 (`is_plain_text`).
[[nodiscard]] std::string canonical(const Json& value);

/// `{"body":...,"crc32c":"0123abcd"}`: a file that a person can read and that knows when it is damaged.
[[nodiscard]] std::string seal(const Json& body);
[[nodiscard]] Result<Json> unseal(ByteSpan text, std::string_view what);

/// Valid UTF-8 without control characters, 1 .. `max` bytes: fit for a name.
[[nodiscard]] bool is_plain_text(std::string_view text, std::size_t max = 256);
/// Keeps what JSON can hold, for texts that are only shown.
[[nodiscard]] std::string as_plain_text(std::string_view text);

[[nodiscard]] std::string hex32(std::uint32_t value);
[[nodiscard]] std::string hex64(std::uint64_t value);

/// Reads the fields of an object. The first thing that is wrong stays in `problem`; after it all reads give zeros, so
/// a decoder reads everything and asks once.
class Fields {
 public:
  Fields(const Json& object, std::string where, std::string& problem);
  [[nodiscard]] std::uint64_t number(const char* key, std::uint64_t max = json_integer_max) const;
  [[nodiscard]] std::string text(const char* key, std::size_t max) const;
  [[nodiscard]] std::uint64_t hex(const char* key, std::size_t digits) const;  ///< Exactly so many lower-case digits.
  [[nodiscard]] const Json& list(const char* key, std::size_t max) const;
  [[nodiscard]] Fields object(const char* key) const;
  [[nodiscard]] bool has(const char* key) const;
  void complain(std::string_view about) const;
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  [[nodiscard]] const Json* find(const char* key) const;
  const Json* object_;
  std::string where_;
  std::string* problem_;
};

/// An integer of a column, below `max`; otherwise complains.
[[nodiscard]] std::uint64_t number_of(const Json& value, std::uint64_t max, const Fields& owner);

}  // namespace elrun::inline v0
