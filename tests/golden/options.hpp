#pragma once
/// \file What elrun_golden is asked to run: a value, from its command line and back to one.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace elrun::golden {

/// The `number`-th of `of` portions, from 1.
struct Part {
  std::uint64_t number = 1, of = 1;
};

/// Of a list: from `begin` to before `end`.
struct Portion {
  std::size_t begin = 0, end = 0;
};
/// The portions of a list, in its order; none is more than one longer than another.
[[nodiscard]] Portion portion(std::size_t size, const Part& part);

struct Options {
  std::uint64_t seed = 0, histories = 0, cells = 0;
  bool all_cells = false;
  std::optional<std::uint64_t> cell, history;  ///< One alone: by its place in the matrix, or its seed.
  Part part;
  std::optional<unsigned> steps;
  std::string logs;
  bool help = false;
};
/// Nothing for a wrong command line.
[[nodiscard]] std::optional<Options> parse(const std::vector<std::string>& arguments);

/// The command line for one cell, or one history, of those that `options` asked for.
[[nodiscard]] std::string again_cell(const std::string& program, const Options& options, std::size_t cell);
[[nodiscard]] std::string again_history(const std::string& program, const Options& options, std::uint64_t seed);

}  // namespace elrun::golden
