#pragma once
/// \file Command lines of samples: a table with one row per flag, from which parsing, bounds and --help follow.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

namespace flags {

/// `sysexits.h`, which launchers and schedulers know.
enum ExitCode : int { usage = 64, no_input = 66, configuration = 78 };

constexpr std::uint64_t unbounded = std::uint64_t{1} << 62;

/// Of a struct `Options`: everything about one flag.
template <class Options>
struct Flag {
  const char *name, *value;  ///< A flag for a bool has no value: it is there or not.
  std::variant<std::string Options::*, std::uint64_t Options::*, double Options::*, bool Options::*> place;
  std::uint64_t min, max;  ///< Of whole numbers.
  const char* help;
};

template <class Options>
struct Parsed {
  Options options;
  std::vector<std::string> problems;  ///< Each with flag, value and remedy; empty when all is well.
  int exit_code = 0;                  ///< Of the gravest problem: `usage` before `configuration`.
};

namespace detail {

template <class T>
bool read(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

/// `--micro-batch` and `--micro_batch` are the same flag.
inline bool same_name(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if ((a[i] == '_' ? '-' : a[i]) != (b[i] == '_' ? '-' : b[i])) return false;
  return true;
}

template <class Options>
std::string range(const Flag<Options>& flag) {
  if (flag.max >= unbounded) return "a whole number of at least " + std::to_string(flag.min);
  return "a whole number from " + std::to_string(flag.min) + " to " + std::to_string(flag.max);
}

/// Empty, or what is wrong with the value.
template <class Options>
std::string assign(Options& options, const Flag<Options>& flag, const std::string& value) {
  const std::string name = "--" + std::string{flag.name}, said = name + " '" + value + "'";
  if (const auto* text = std::get_if<std::string Options::*>(&flag.place)) {
    options.*(*text) = value;
    return value.empty() ? name + " is empty: give it a " + flag.value : "";
  }
  if (const auto* real = std::get_if<double Options::*>(&flag.place)) {
    double x = 0;
    if (!read(value, x) || !(x > 0 && x <= 100)) return said + " is no number above 0 and at most 100: try " + name + " 0.002";
    options.*(*real) = x;
    return "";
  }
  std::uint64_t n = 0;
  if (!read(value, n) || n < flag.min || n > flag.max) return said + " is not " + range(flag);
  options.*(*std::get_if<std::uint64_t Options::*>(&flag.place)) = n;
  return "";
}

}  // namespace detail

/// `--name value` and `--name=value`, or `--name` alone for a bool; the last of two wins. `Options` has a member `help`.
template <class Options, std::size_t count>
[[nodiscard]] Parsed<Options> parse(const Flag<Options> (&table)[count], const std::string& program,
                                    const std::vector<std::string>& arguments) {
  Parsed<Options> parsed;
  const auto wrong = [&](std::string problem) {
    parsed.problems.push_back(std::move(problem));
    parsed.exit_code = ExitCode::usage;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      parsed.options.help = true;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const Flag<Options>* found = nullptr;
    if (argument.starts_with("--"))
      for (const Flag<Options>& flag : table)
        if (detail::same_name(flag.name, std::string_view{argument}.substr(2, equals == std::string::npos ? equals : equals - 2)))
          found = &flag;
    const auto* const set = found == nullptr ? nullptr : std::get_if<bool Options::*>(&found->place);
    if (found == nullptr) {
      wrong("'" + argument + "' is no option of " + program + ": see --help");
      // What follows an unknown `--name` is taken to be its value, and not a problem of its own.
      if (argument.starts_with("--") && equals == std::string::npos && i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) ++i;
    } else if (set != nullptr) {
      if (equals != std::string::npos) wrong("'" + argument + "': --" + found->name + " takes no value");
      parsed.options.*(*set) = true;
    } else if (equals == std::string::npos && i + 1 == arguments.size()) {
      wrong(argument + " needs a value: " + argument + " " + found->value);
    } else if (std::string problem =
                   detail::assign(parsed.options, *found, equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1));
               !problem.empty()) {
      wrong(std::move(problem));
    }
  }
  return parsed;
}

/// Adds what options say together, unless something graver was said before.
template <class Options>
void add_contradictions(Parsed<Options>& parsed, std::vector<std::string> problems) {
  for (std::string& problem : problems) {
    parsed.problems.push_back(std::move(problem));
    if (parsed.exit_code == 0) parsed.exit_code = ExitCode::configuration;
  }
}

/// Says all problems on standard error and returns the exit code for `main`. All workers of a node have one command line, so
/// the first of them speaks for all. The others wait for it to be heard, so that none of them is the first to have failed.
template <class Options>
[[nodiscard]] int refuse(const std::string& program, const Parsed<Options>& parsed) {
  const char* const local_rank = std::getenv("LOCAL_RANK");
  if (local_rank != nullptr && std::strcmp(local_rank, "0") != 0) {
    std::this_thread::sleep_for(std::chrono::seconds{2});  // the launcher ends it before
    return parsed.exit_code;
  }
  for (const std::string& problem : parsed.problems) std::fprintf(stderr, "%s: %s\n", program.c_str(), problem.c_str());
  return parsed.exit_code;
}

/// One line per flag, with its default.
template <class Options, std::size_t count>
[[nodiscard]] std::string help(const Flag<Options> (&table)[count]) {
  const Options defaults;
  std::string text;
  for (const Flag<Options>& flag : table) {
    std::string head = "  --" + std::string{flag.name} + " " + flag.value;
    head.resize(std::max<std::size_t>(head.size() + 1, 24), ' ');
    std::string tail;
    if (const auto* n = std::get_if<std::uint64_t Options::*>(&flag.place)) tail = " (" + std::to_string(defaults.*(*n)) + ")";
    if (const auto* x = std::get_if<double Options::*>(&flag.place)) {
      std::string number = std::to_string(defaults.*(*x));
      number.erase(number.find_last_not_of('0') + 1);
      if (number.ends_with('.')) number.pop_back();
      tail = " (" + number + ")";
    }
    text += head + flag.help + tail + "\n";
  }
  return text + "  --help                this text\n";
}

}  // namespace flags
