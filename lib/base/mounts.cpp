#include "lib/base/mounts.hpp"

#include <algorithm>
#include <optional>
#include <vector>

namespace elrun::inline v0 {
namespace {

struct Entry {
  Path at;
  bool is_automatic = true;
};

/// Spaces, tabs and backslashes are three octal digits in both files.
std::string unescaped(std::string_view text) {
  std::string out;
  const auto octal = [](char c) { return c >= '0' && c <= '7'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && octal(text[i + 1]) && octal(text[i + 2]) && octal(text[i + 3])) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (std::size_t at = text.find_first_not_of(separators); at != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(separators, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(separators, end);
  }
  return parts;
}

/// Of lines `what where type options ...`.
std::vector<Entry> entries(std::string_view table) {
  std::vector<Entry> all;
  for (const std::string_view line : split(table, "\n")) {
    const auto fields = split(line, " \t");
    if (fields.size() < 2 || fields[0].starts_with('#') || !fields[1].starts_with('/')) continue;  // swap has no place
    Entry entry{Path{unescaped(fields[1])}.lexically_normal(), true};
    if (!entry.at.has_filename() && entry.at.has_relative_path()) entry.at = entry.at.parent_path();  // "/data/"
    if (fields.size() > 3)
      for (const std::string_view option : split(fields[3], ",")) entry.is_automatic = entry.is_automatic && option != "noauto";
    all.push_back(std::move(entry));
  }
  return all;
}

bool is_at_or_below(const Path& path, const Path& mount) {
  return std::mismatch(mount.begin(), mount.end(), path.begin(), path.end()).first == mount.end();
}

}  // namespace

std::string missing_mount(const Path& path, std::string_view fstab, std::string_view mounts) {
  const std::vector<Entry> mounted = entries(mounts);
  std::string deepest;
  for (const Entry& e : entries(fstab)) {
    const bool is_there = std::any_of(mounted.begin(), mounted.end(), [&](const Entry& m) { return m.at == e.at; });
    if (e.is_automatic && !is_there && is_at_or_below(path, e.at) && e.at.string().size() > deepest.size()) deepest = e.at.string();
  }
  return deepest;
}

}  // namespace elrun::inline v0
