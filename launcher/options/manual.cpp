#include "launcher/options/manual.hpp"

#include <fmt/format.h>

#include "launcher/options/option_table.hpp"

namespace elrun::inline v0::launcher {
namespace {

/// As roff takes it for text: a hyphen that can be copied, and no line that looks like a request.
std::string plain(std::string_view text) {
  std::string out;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') out += "\\e";
    else if (c == '-') out += "\\-";
    else if (c == '\'') out += "\\(aq";
    else if (c == '`') out += "\\(ga";
    else out += c;
    at_start = c == '\n';
  }
  return out;
}

std::string verbatim(std::string_view text) { return fmt::format(".PP\n.nf\n{}{}.fi\n", plain(text), text.ends_with('\n') ? "" : "\n"); }

std::string description_of(const Option& o) {
  std::string text = fmt::format(".TP\n\\fB\\-\\-{}\\fR", plain(hyphened(o.name)));
  if (!o.value.empty()) text += fmt::format(" \\fI{}\\fR", plain(o.value));
  if (o.letter != 0) text += fmt::format(", \\fB\\-{}\\fR", o.letter);
  text += fmt::format("\n{}.\n", plain(o.help));
  if (!o.initial.empty() && !o.is_flag) text += fmt::format("Default: {}.\n", plain(o.initial));
  if (o.has_variable) text += fmt::format("Variable: {}.\n", variable_of(o));
  return text;
}

std::string options_section() {
  std::string text = ".SH OPTIONS\n";
  for (const auto& [group, title] : group_titles()) {
    text += fmt::format(".SS {}\n", plain(title));
    for (const Option& o : option_table())
      if (o.group == group && !o.help.empty()) text += description_of(o);
  }
  return text;
}

std::string commands_section(std::span<const CommandHelp> commands) {
  std::string text = ".SH COMMANDS\n";
  for (const CommandHelp& command : commands) text += fmt::format(".SS elrun {}\n{}", plain(command.name), verbatim(command.text));
  return text;
}

}  // namespace

std::string manual_page(std::string_view version, std::span<const CommandHelp> commands) {
  std::string text = fmt::format(
      ".\\\" Made from the table of options; launcher/options/manual.cpp.\n"
      ".TH ELRUN 1 \"\" \"elrun {}\" \"User Commands\"\n"
      ".SH NAME\nelrun \\- elastic launcher for distributed training, used like torchrun\n",
      version);
  for (const auto& [title, part, is_verbatim] : help_parts()) {
    if (title == "ACCESS") text += options_section() + commands_section(commands);
    text += fmt::format(".SH {}\n{}", title, is_verbatim ? verbatim(part) : plain(part));
  }
  return text;
}

}  // namespace elrun::inline v0::launcher
