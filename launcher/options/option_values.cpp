#include "launcher/options/option_values.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <numeric>
#include <utility>

#include "launcher/report/endings.hpp"

namespace elrun::inline v0::launcher {
namespace {

// Takes the part before the next comma off the front; the last part leaves nothing.
std::string_view next_part(std::string_view& rest) {
  const auto comma = rest.find(',');
  const std::string_view part = rest.substr(0, comma);
  rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  return part;
}

// Plain digits: no sign, no blanks.
std::optional<std::uint32_t> to_rank(std::string_view text) {
  std::uint32_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty() || rank >= workers_per_node_limit) return std::nullopt;
  return rank;
}

std::optional<Streams> to_streams(std::string_view text) {
  if (text.size() != 1 || text[0] < '0' || text[0] > '3') return std::nullopt;
  return Streams{.out = ((text[0] - '0') & 1) != 0, .err = ((text[0] - '0') & 2) != 0};
}

// Signals that no process can handle, and those that report an error of the process itself.
bool can_be_handled(int number) {
  constexpr int never[] = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
  return std::find(std::begin(never), std::end(never), number) == std::end(never);
}

}  // namespace

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string_view unquoted(std::string_view text) {
  text = trimmed(text);
  if (text.size() < 2 || (text.front() != '\'' && text.front() != '"') || text.find(text.front(), 1) != text.size() - 1) return text;
  return trimmed(text.substr(1, text.size() - 2));
}

std::optional<std::int64_t> to_integer(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

std::optional<Duration> to_seconds(std::string_view text) {
  constexpr double seconds_max = 365.0 * 86400;
  text = trimmed(text);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || !(number >= 0) || number > seconds_max) return std::nullopt;
  return Duration{static_cast<std::int64_t>(std::llround(number * 1e9))};
}

bool host_is_plain(std::string_view host) {
  return !host.empty() && host.size() <= 255 && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' || c == '-' || c == ':';
  });
}

std::optional<StreamsByRank> parse_streams(std::string_view text) {
  if (const auto all = to_streams(text)) return StreamsByRank{.others = *all};
  if (text.empty() || text.ends_with(',')) return std::nullopt;
  StreamsByRank streams;
  while (!text.empty()) {
    const std::string_view pair = next_part(text);
    const auto colon = pair.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const auto rank = to_rank(pair.substr(0, colon));
    const auto which = to_streams(pair.substr(colon + 1));
    if (!rank || !which) return std::nullopt;
    streams.ranks.insert_or_assign(*rank, *which);
  }
  return streams;
}

std::optional<std::set<std::uint32_t>> parse_ranks(std::string_view text) {
  if (text.empty() || text.ends_with(',')) return std::nullopt;
  std::set<std::uint32_t> ranks;
  while (!text.empty()) {
    const auto rank = to_rank(trimmed(next_part(text)));
    if (!rank) return std::nullopt;
    ranks.insert(*rank);
  }
  return ranks;
}

std::vector<std::string> parse_line_filters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') filters.back() += text[i];
    else if (text.substr(i + 1).starts_with(',')) filters.back() += text[i++];
    else filters.emplace_back();
  }
  std::erase_if(filters, [](const std::string& f) { return f.empty(); });
  return filters;
}

std::vector<std::string> parse_devices(std::string_view text) {
  std::vector<std::string> devices;
  while (!text.empty())
    if (const std::string_view device = trimmed(next_part(text)); !device.empty()) devices.emplace_back(device);
  return devices;
}

bool is_mig_name(std::string_view device) { return device.starts_with("MIG-"); }

std::optional<std::vector<std::string>> named_devices(const std::optional<std::string>& of_cuda,
                                                      const std::optional<std::string>& of_container) {
  if (of_cuda) return parse_devices(*of_cuda);
  auto devices = parse_devices(of_container.value_or(""));
  return devices.empty() || !is_mig_name(devices.front()) ? std::nullopt : std::optional{std::move(devices)};
}

std::string_view nearest(std::string_view text, std::span<const std::string_view> words) {
  constexpr std::size_t longest = 64;
  if (text.size() > longest) return {};
  std::size_t least = std::max<std::size_t>(text.size() / 4, 1) + 1;  // with more changes than one in four letters it is another word
  std::string_view found;
  for (const std::string_view word : words) {
    // How many letters must be changed, left out or put in: of the first i letters of one, and the first j of the other.
    std::vector<std::size_t> row(word.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= text.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j <= word.size(); ++j) {
        const std::size_t above = row[j];
        row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (text[i - 1] == word[j - 1] ? 0 : 1)});
        diagonal = above;
      }
    }
    if (row.back() < least) least = row.back(), found = word;
  }
  return found;
}

SignalList parse_signals(std::string_view text) {
  SignalList list;
  while (!text.empty()) {
    const std::string_view name = trimmed(next_part(text));
    int found = 0;
    for (int number = 1; number < 32 && found == 0; ++number)
      if (can_be_handled(number) && name == signal_name(number)) found = number;
    if (name.empty()) continue;
    if (found == 0) list.refused.emplace_back(name);
    else if (std::find(list.numbers.begin(), list.numbers.end(), found) == list.numbers.end()) list.numbers.push_back(found);
  }
  return list;
}

}  // namespace elrun::inline v0::launcher
