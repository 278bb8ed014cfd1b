#pragma once
/// \file What a checkpoint root promises, looked at from outside while or after a job saves in it.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/gpt_job.hpp"

namespace elrun::test {

/// The newest step that was acknowledged, by the names under gens/.
inline std::uint64_t acknowledged(const std::string& root) {
  std::uint64_t newest = 0;
  if (std::filesystem::exists(root + "/gens"))
    for (const auto& entry : std::filesystem::directory_iterator{root + "/gens"})
      if (const std::string name = entry.path().filename(); name.ends_with(".acknowledged"))
        newest = std::max<std::uint64_t>(newest, std::strtoull(name.c_str() + 11, nullptr, 10));
  return newest;
}

/// What a start would come to, as `elrun ckpt ls` tells: it goes on, from what was acknowledged or later.
inline void goes_on(const std::string& root, std::uint64_t promised) {
  if (!std::filesystem::exists(root + "/RUN.json") && promised == 0) return;
  const Ended list = run("elrun", {"ckpt", "ls", root, "--json"});
  INFO(list.output);
  REQUIRE(list.code == 0);
  const auto json = nlohmann::json::parse(list.output);
  REQUIRE(json["start"].contains("step"));
  CHECK(json["start"]["step"].get<std::uint64_t>() >= promised);
}

}  // namespace elrun::test
