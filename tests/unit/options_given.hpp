#pragma once
/// \file A command line in a given environment, on a machine of a given size: taken, or refused.

#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "launcher/options/options.hpp"
#include "tests/support/catch.hpp"

namespace elrun::test {
using namespace elrun::launcher;

struct Given {
  Variables environment{};
  std::uint32_t gpus = 0, cpus = 6;
};

inline Parsed parse(std::vector<std::string> arguments, const Given& given = {}) {
  return parse_command(arguments, given.environment,
                       {.gpus =
                            [&] {
                              return Count{given.gpus, "devices"};
                            },
                        .cpus =
                            [&] {
                              return Count{given.cpus, "mask"};
                            }});
}

inline LaunchOptions launch(std::vector<std::string> arguments, const Given& given = {}) {
  auto command = parse(std::move(arguments), given);
  if (const auto* usage = std::get_if<Usage>(&command)) FAIL(usage->text);
  return std::get<LaunchOptions>(command);
}

inline Usage refused(std::vector<std::string> arguments, const Given& given = {}) {
  auto command = parse(arguments, given);
  if (!std::holds_alternative<Usage>(command)) FAIL(fmt::format("accepted: {}", arguments));
  return std::get<Usage>(command);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace elrun::test
