#pragma once
/// \file The table of all options, and the texts that are made from it: the help and what a shell completes.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace elrun::inline v0::launcher {

enum class OptionGroup { nodes, program, workers, failures, output, others };

struct Option {
  std::string_view name;  ///< With underscores.
  char letter = 0;        ///< Its short form; 0: none
  bool is_flag = false;
  bool is_own = false;       ///< Unknown to torchrun: an abbreviation means torchrun's options first.
  bool has_variable = true;  ///< Takes its default from PET_*.
  OptionGroup group = OptionGroup::others;
  std::string_view initial{};  ///< The default, as text.
  std::string_view value{};    ///< How the value is shown in the help.
  std::string_view help{};     ///< Lines of at most 90 characters; empty: not in the help
};

[[nodiscard]] std::span<const Option> option_table();

/// "PET_NNODES" for nnodes.
[[nodiscard]] std::string variable_of(const Option& option);
/// With hyphens for underscores.
[[nodiscard]] std::string hyphened(std::string_view name);

/// A part of the help that no option says.
struct HelpPart {
  std::string_view title;
  std::string_view text;
  bool is_verbatim = false;  ///< Its lines are lines; else it is running text.
};
struct GroupTitle {
  OptionGroup group;
  std::string_view title;
};
[[nodiscard]] std::span<const HelpPart> help_parts();
[[nodiscard]] std::span<const GroupTitle> group_titles();

[[nodiscard]] std::string help_text();
[[nodiscard]] std::string store_help_text();   ///< Of `elrun store`.
[[nodiscard]] std::string doctor_help_text();  ///< Of `elrun doctor`.
/// What bash, zsh or tcsh is to read so that it completes elrun's options; none for another shell.
[[nodiscard]] std::optional<std::string> completion_text(std::string_view shell);

}  // namespace elrun::inline v0::launcher
