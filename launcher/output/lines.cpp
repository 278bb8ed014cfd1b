#include "launcher/output/lines.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lib/base/assert.hpp"

namespace elrun::inline v0::launcher {
namespace {

// The position of `what` in `text`, or its size.
std::size_t find(std::string_view text, char what) {
  const void* found = text.empty() ? nullptr : std::memchr(text.data(), what, text.size());
  return found == nullptr ? text.size() : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace

Lines::Lines(std::string prefix, std::vector<std::string> filters, std::size_t line_max)
    : prefix_{std::move(prefix)}, filters_{std::move(filters)}, line_max_{line_max} {
  ELRUN_ASSERT(line_max_ > 0);
}

void Lines::feed(std::string_view bytes, std::string& shown, std::string& filtered) {
  std::size_t to_return = find(bytes, '\r');  // searched once per carriage return, not once per line
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false)) {
      if (bytes.front() == '\n') {
        put({}, "\r\n", shown, filtered);
        bytes.remove_prefix(1);
        to_return = find(bytes, '\r');
        continue;
      }
      if (!begun_.empty()) put({}, "\n", shown, filtered);
    }
    const std::size_t to_newline = find(bytes.substr(0, to_return), '\n');
    const std::string_view text = bytes.substr(0, to_newline);
    if (to_newline < to_return) {
      put(text, "\n", shown, filtered);
      bytes.remove_prefix(to_newline + 1);
      to_return -= to_newline + 1;
      continue;
    }
    keep(text, shown, filtered);
    if (to_return == bytes.size()) return;
    after_return_ = true;
    bytes.remove_prefix(to_return + 1);
    to_return = find(bytes, '\r');
  }
}

void Lines::end(std::string& shown, std::string& filtered) {
  after_return_ = false;
  if (!begun_.empty()) put({}, "\n", shown, filtered);
}

// The line that has begun goes on with `rest`; what is too long for one line is written in pieces.
void Lines::keep(std::string_view rest, std::string& shown, std::string& filtered) {
  while (begun_.size() + rest.size() > line_max_) {
    const std::size_t room = line_max_ - begun_.size();
    put_piece(rest.substr(0, room), "\n", shown, filtered);
    rest.remove_prefix(room);
  }
  begun_ += rest;
}

void Lines::put(std::string_view rest, std::string_view ending, std::string& shown, std::string& filtered) {
  if (begun_.size() + rest.size() > line_max_) {
    keep(rest, shown, filtered);
    rest = {};
  }
  put_piece(rest, ending, shown, filtered);
}

void Lines::put_piece(std::string_view rest, std::string_view ending, std::string& shown, std::string& filtered) {
  const std::size_t begin = shown.size();
  shown += prefix_;
  shown += begun_;
  shown += rest;
  begun_.clear();
  const std::string_view text = std::string_view{shown}.substr(begin + prefix_.size());
  const bool matches =
      std::any_of(filters_.begin(), filters_.end(), [&](const std::string& f) { return text.find(f) != std::string_view::npos; });
  shown += ending;
  if (matches) filtered.append(shown, begin);
}

std::vector<std::string> last_lines(std::string_view tail, bool is_whole, std::size_t lines_max) {
  std::vector<std::string> lines;
  while (!tail.empty()) {
    const std::size_t end = find(tail, '\n');
    std::string_view line = tail.substr(0, end);
    tail.remove_prefix(std::min(end + 1, tail.size()));
    while (line.ends_with('\r')) line.remove_suffix(1);
    if (const auto back = line.rfind('\r'); back != std::string_view::npos) line.remove_prefix(back + 1);
    lines.emplace_back(line);
  }
  if (!is_whole && lines.size() > 1) lines.erase(lines.begin());
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  if (lines.size() > lines_max) lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(lines_max));
  return lines;
}

}  // namespace elrun::inline v0::launcher
