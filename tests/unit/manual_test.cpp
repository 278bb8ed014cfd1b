// elrun(1), as it is made from the table of options.
#include "launcher/options/manual.hpp"

#include <sstream>
#include <vector>

#include "launcher/options/option_table.hpp"
#include "tests/support/catch.hpp"

namespace elrun::launcher {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// As roff prints it, without its fonts.
std::string read_back(std::string text) {
  const auto replace = [&](std::string_view from, std::string_view to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  };
  for (const char* font : {"\\fB", "\\fI", "\\fR", "\\&"}) replace(font, "");
  replace("\\-", "-");
  replace("\\(aq", "'");
  replace("\\(ga", "`");
  replace("\\e", "\\");
  return text;
}

TEST_CASE("the manual page has every option of the help, and every line of a command's help", "[manual]") {
  const std::vector<CommandHelp> commands{{"store", store_help_text()}, {"doctor", doctor_help_text()}};
  const std::string page = manual_page("1.2.3", commands), text = read_back(page);
  CHECK(page.find(".TH ELRUN 1 \"\" \"elrun 1.2.3\"") != std::string::npos);
  for (const Option& o : option_table()) {
    CAPTURE(o.name);
    CHECK(contains(text, ".TP\n--" + hyphened(o.name)) == !o.help.empty());
    CHECK(contains(text, o.help));
  }
  for (const CommandHelp& command : commands) CHECK(contains(text, command.text));
  for (const auto& part : help_parts()) CHECK(contains(text, part.text));
  CHECK(contains(text, ".SH SYNOPSIS\n.PP\n.nf\nelrun [options] PROGRAM"));  // "usage: " is for the help
  CHECK(help_text().starts_with("usage: elrun [options] PROGRAM [arguments...]     start"));
  CHECK(contains(help_text(), "\n       elrun store "));
}

TEST_CASE("no line of the manual page is taken for a request that is none", "[manual]") {
  const std::vector<CommandHelp> commands{{"odd", "usage:\n.so /etc/passwd\n'br\na\\b -x\n"}};
  std::istringstream page{manual_page("1", commands)};
  for (std::string line; std::getline(page, line);) {
    CAPTURE(line);
    if (line.starts_with(".")) {
      bool known = false;
      for (const char* request : {".\\\"", ".TH ", ".SH ", ".SS ", ".TP", ".PP", ".nf", ".fi"}) known = known || line.starts_with(request);
      CHECK(known);
    }
    CHECK_FALSE(line.starts_with("'"));
  }
  CHECK(contains(read_back(manual_page("1", commands)), "\n.so /etc/passwd\n'br\na\\b -x\n"));
}

}  // namespace
}  // namespace elrun::launcher
