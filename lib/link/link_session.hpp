#pragma once
/// \file LinkSession: a session over a connection, to the agent or to rank 0 of an operator's job. One thread, one loop.

#include <memory>
#include <string>
#include <variant>

#include <elrun/session.hpp>

#include "lib/link/environment.hpp"

namespace elrun::inline v0 {

[[nodiscard]] Result<std::unique_ptr<Session>> open_under_agent(const UnderAgent& place, WorkerKind kind, Deadline deadline);
[[nodiscard]] Result<std::unique_ptr<Session>> open_in_operators_job(const InOperatorsJob& place, WorkerKind kind, Deadline deadline);

}  // namespace elrun::inline v0
