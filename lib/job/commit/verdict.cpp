#include "lib/job/commit/verdict.hpp"

#include <algorithm>
#include <map>

namespace elrun::inline v0 {

std::optional<Mismatch> find_mismatch(std::span<const std::uint64_t> numbers) {
  if (numbers.empty() || std::ranges::count(numbers, numbers.front()) == std::ssize(numbers)) return std::nullopt;
  std::map<std::uint64_t, std::size_t> voices;
  for (const std::uint64_t n : numbers) ++voices[n];
  const auto most = std::ranges::max_element(voices, {}, [](const auto& v) { return v.second; });
  const bool outvoted = std::ranges::count_if(voices, [&](const auto& v) { return v.second == most->second; }) == 1;
  const std::uint64_t right = outvoted ? most->first : numbers.front();
  const auto wrong = std::ranges::find_if(numbers, [right](std::uint64_t n) { return n != right; });
  return Mismatch{static_cast<std::size_t>(wrong - numbers.begin()), outvoted};
}

}  // namespace elrun::inline v0
