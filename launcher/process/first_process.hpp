#pragma once
/// \file Whether process 1 of a container passes a SIGTERM on. Pure.

#include <cstdint>
#include <string>
#include <string_view>

namespace elrun::inline v0::launcher {

/// A sentence for people when process 1 is a shell that neither handles nor forwards SIGTERM, so that the end of the container is its SIGKILL;
/// else empty. `status` is the text of /proc/1/status, `own` this process's number.
[[nodiscard]] std::string first_process_warning(std::string_view status, std::int64_t own);

}  // namespace elrun::inline v0::launcher
