#pragma once
/// \file Which transport a group may use: what the program says, else what the environment says. Pure.

#include <optional>
#include <string>

#include <elrun/process_group.hpp>
#include <elrun/result.hpp>

namespace elrun::inline v0 {

/// `variable` is ELRUN_TRANSPORT: `auto`, `tcp` or `shm`. It counts where the program left the choice open.
[[nodiscard]] Result<Transport> choose_transport(Transport by_program, const std::optional<std::string>& variable);

}  // namespace elrun::inline v0
