#include "tests/golden/options.hpp"

#include <charconv>

#include <fmt/format.h>

namespace elrun::golden {
namespace {

constexpr unsigned steps_min = 100, steps_max = 1'000'000;
constexpr std::uint64_t parts_max = 100'000, histories_of_all = 200, histories_max = 1'000'000;

std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return {};
  return number;
}

/// `K/N`.
std::optional<Part> part_in(const std::string& text) {
  const auto slash = text.find('/');
  if (slash == std::string::npos) return {};
  const auto number = number_in(text.substr(0, slash)), of = number_in(text.substr(slash + 1));
  if (!number || !of || *number == 0 || *number > *of || *of > parts_max) return {};
  return Part{*number, *of};
}

std::string steps_of(const Options& options) { return options.steps ? fmt::format(" --steps {}", *options.steps) : ""; }

}  // namespace

Portion portion(std::size_t size, const Part& part) { return {size * (part.number - 1) / part.of, size * part.number / part.of}; }

std::optional<Options> parse(const std::vector<std::string>& arguments) {
  Options options;
  bool chosen = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (name == "--help" || name == "-h") return options.help = true, options;
    if (++i == arguments.size()) return {};
    const std::string& value = arguments[i];
    chosen |= name == "--cells" || name == "--cell" || name == "--histories" || name == "--history";
    if (name == "--logs") {
      options.logs = value;
    } else if (name == "--part") {
      const auto part = part_in(value);
      if (!part) return {};
      options.part = *part;
    } else if (name == "--cells" && value == "all") {
      options.all_cells = true;
    } else {
      const auto number = number_in(value);
      if (!number) return {};
      if (name == "--seed") options.seed = *number;
      else if (name == "--cell") options.cell = *number;
      else if (name == "--cells") options.cells = *number;
      else if (name == "--history") options.history = *number;
      else if (name == "--histories" && *number <= histories_max) options.histories = *number;
      else if (name == "--steps" && *number >= steps_min && *number <= steps_max) options.steps = static_cast<unsigned>(*number);
      else return {};
    }
  }
  if (!chosen) options.all_cells = true, options.histories = histories_of_all;
  const bool one = options.cell || options.history, several = options.all_cells || options.cells > 0 || options.histories > 0;
  if (one == several || (options.cell && options.history)) return {};
  return options;
}

std::string again_cell(const std::string& program, const Options& options, std::size_t cell) {
  return fmt::format("{} --cell {}{}", program, cell, steps_of(options));
}
std::string again_history(const std::string& program, const Options& options, std::uint64_t seed) {
  return fmt::format("{} --history {}{}", program, seed, steps_of(options));
}

}  // namespace elrun::golden
