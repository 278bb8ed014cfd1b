#pragma once
/// \file Where a worker finds its place: the environment as a value, read once, judged here. Pure.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>

#include <elrun/ids.hpp>
#include <elrun/result.hpp>

namespace elrun::inline v0 {

/// ELRUN_SOCKET is set: the agent knows the rest.
struct UnderAgent {
  std::string socket;
  Rank rank;
  WorldSize world;
  std::optional<LocalRank> local_rank{};  ///< ELRUN_LOCAL_RANK, for LOCAL_RANK may be 0 for every worker.
};
/// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: somebody else has placed this worker.
struct InOperatorsJob {
  Rank rank;
  WorldSize world;
  LocalRank local_rank;
  std::uint32_t local_world = 1;
  std::string master_address;
  std::uint16_t master_port = 0;
  std::string token_file, token;  ///< ELRUN_RDZV_TOKEN_FILE, ELRUN_RDZV_TOKEN: that all ranks have; empty: none. Never printed.
};
/// A world of one.
struct Alone {};
using LaunchEnvironment = std::variant<UnderAgent, InOperatorsJob, Alone>;

using Variables = std::function<std::optional<std::string>(const char* name)>;

/// All problems in one failure.
[[nodiscard]] Result<LaunchEnvironment> read_launch_environment(const Variables& variables);

}  // namespace elrun::inline v0
