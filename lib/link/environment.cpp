#include "lib/link/environment.hpp"

#include <charconv>
#include <vector>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0 {
namespace {

constexpr std::uint32_t world_max = 1 << 20;

/// Reads variables, and remembers what is wrong with them.
class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_{variables} {}

  std::uint32_t number(const char* name, std::uint32_t least, std::uint32_t most, std::optional<std::uint32_t> otherwise = {}) {
    const auto text = variables_(name);
    if (!text) {
      if (!otherwise) problems.push_back(fmt::format("{} is not set", name));
      return otherwise.value_or(least);
    }
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc{} || end != text->data() + text->size() || value < least || value > most) {
      problems.push_back(fmt::format("{}={} is not a number from {} to {}", name, *text, least, most));
      return least;
    }
    return value;
  }
  std::string text(const char* name) {
    const auto value = variables_(name);
    if (!value || value->empty()) problems.push_back(fmt::format("{} is {}", name, value ? "empty" : "not set"));
    return value.value_or("");
  }
  // Empty where there is none, and where the variable holds only blanks.
  [[nodiscard]] std::string token(const char* name) const {
    const std::string value = variables_(name).value_or("");
    return value.find_first_not_of(" \t\r\n") == std::string::npos ? std::string{} : value;
  }
  // As of a secret that nobody has filled: whoever set the variable wants a token, so the world must not be open to all.
  void refuse_empty_tokens() {
    for (const char* name : {"ELRUN_RDZV_TOKEN", "ELRUN_RDZV_TOKEN_FILE"})
      if (variables_(name))
        problems.push_back(
            fmt::format("{} is set and empty: give it the job's token, or unset it if everybody who reaches rank 0 may take part", name));
  }
  void require_below(const char* name, std::uint32_t value, const char* bound_name, std::uint32_t bound) {
    if (value >= bound && problems.empty()) problems.push_back(fmt::format("{}={} is not below {}={}", name, value, bound_name, bound));
  }

  std::vector<std::string> problems;

 private:
  const Variables& variables_;
};

}  // namespace

Result<LaunchEnvironment> read_launch_environment(const Variables& variables) {
  Reader read{variables};
  LaunchEnvironment found = Alone{};
  if (const auto socket = variables("ELRUN_SOCKET")) {
    const std::uint32_t rank = read.number("RANK", 0, world_max - 1);
    const std::uint32_t world = read.number("WORLD_SIZE", 1, world_max, rank + 1);
    read.require_below("RANK", rank, "WORLD_SIZE", world);
    UnderAgent agent{*socket, Rank{rank}, WorldSize{world}};
    if (variables("ELRUN_LOCAL_RANK")) agent.local_rank = LocalRank{read.number("ELRUN_LOCAL_RANK", 0, world_max - 1)};
    found = std::move(agent);
  } else if (variables("RANK") || variables("WORLD_SIZE")) {
    InOperatorsJob job;
    const std::uint32_t rank = read.number("RANK", 0, world_max - 1);
    const std::uint32_t world = read.number("WORLD_SIZE", 1, world_max);
    const std::uint32_t local = read.number("LOCAL_RANK", 0, world_max - 1, 0);
    job.local_world = read.number("LOCAL_WORLD_SIZE", 1, world_max, local + 1);
    job.master_address = read.text("MASTER_ADDR");
    job.master_port = static_cast<std::uint16_t>(read.number("MASTER_PORT", 1, 65535));
    job.token_file = read.token("ELRUN_RDZV_TOKEN_FILE");
    job.token = read.token("ELRUN_RDZV_TOKEN");
    if (job.token_file.empty() && job.token.empty() && world > 1) read.refuse_empty_tokens();
    read.require_below("RANK", rank, "WORLD_SIZE", world);
    read.require_below("LOCAL_RANK", local, "LOCAL_WORLD_SIZE", job.local_world);
    job.rank = Rank{rank};
    job.world = WorldSize{world};
    job.local_rank = LocalRank{local};
    found = std::move(job);
  }
  if (read.problems.empty()) return found;
  for (std::string& problem : read.problems) problem += " (in the environment of this worker)";
  return invalid(read.problems);
}

}  // namespace elrun::inline v0
