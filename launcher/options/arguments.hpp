#pragma once
/// \file Arguments: which option was given which text, and where. Command line over PET_* over default, not understood yet.

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/option_table.hpp"
#include "launcher/options/options.hpp"

namespace elrun::inline v0::launcher {

/// All that is wrong, told together.
class Problems {
 public:
  /// The words themselves: an unknown option, a missing program, letters for a number.
  void usage(std::string text) { usage_.push_back(std::move(text)); }
  /// A value that means nothing here.
  void value(std::string text) { values_.push_back(std::move(text)); }
  /// Options that are fine alone, and not together.
  void contradiction(std::string text) { contradictions_.push_back(std::move(text)); }
  [[nodiscard]] bool empty() const { return usage_.empty() && values_.empty() && contradictions_.empty(); }
  [[nodiscard]] Usage report(ExitCodes codes) const;

 private:
  std::vector<std::string> usage_, values_, contradictions_;
};

struct Given {
  std::string text;
  std::string source;  ///< "--nnodes" or "PET_NNODES"; empty: the default
};

class Arguments {
 public:
  explicit Arguments(const Variables& environment);

  /// PET_*, then the words. What cannot be read is a problem, what was read in another sense is noted.
  void read(std::span<const std::string> words, Problems& problems, std::vector<std::string>& notes);
  void set(std::string_view option, std::string text, std::string source);

  [[nodiscard]] const Given& get(std::string_view option) const { return given_.find(option)->second; }
  [[nodiscard]] bool is_given(std::string_view option) const { return !get(option).source.empty(); }
  [[nodiscard]] bool flag(std::string_view option) const { return get(option).text == "1"; }
  /// "--nnodes 3:2" or "PET_NNODES=3:2"; of --rdzv_conf, which may hold a token, never the text.
  [[nodiscard]] std::string shown(std::string_view option) const;
  /// A variable that is set and not empty.
  [[nodiscard]] std::optional<std::string> variable(std::string_view name) const;
  /// The word after the options, and what follows it; none: there was no such word.
  [[nodiscard]] const std::optional<Program>& program() const { return program_; }

 private:
  void read_environment(Problems& problems);
  const Option* find(std::string_view token, std::string name, Problems& problems) const;

  const Variables& environment_;
  std::map<std::string, Given, std::less<>> given_;
  std::optional<Program> program_;
};

}  // namespace elrun::inline v0::launcher
