#include "lib/base/printable.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

namespace elrun::inline v0 {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t size = 0;  // bytes; 0: no UTF-8
};

Character first_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t size = lead >= 0xf0 && lead < 0xf5 ? 4 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xc2 && lead < 0xe0 ? 2 : 0;
  if (size == 0 || text.size() < size) return {};
  std::uint32_t code = lead & (0xffu >> (size + 1));
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::array<std::uint32_t, 5> least{0, 0, 0x80, 0x800, 0x10000};
  if (code < least[size] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, size};
}

bool may_be_shown(std::uint32_t code, Lines lines) {
  if (lines == Lines::many && (code == '\n' || code == '\t')) return true;
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool turns = (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return !control && !turns;
}

}  // namespace

std::string printable(std::string_view text, Lines lines, Bytes8 odd) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character first = first_of(text);
    const std::string_view bytes = text.substr(0, first.size == 0 ? 1 : first.size);
    if (first.size > 0 ? may_be_shown(first.code, lines) : odd == Bytes8::kept) out += bytes;
    else
      for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    text.remove_prefix(bytes.size());
  }
  return out;
}

}  // namespace elrun::inline v0
