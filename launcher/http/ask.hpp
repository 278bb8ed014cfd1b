#pragma once
/// \file Ask: one question to an agent's admin endpoint, and its answer, within a deadline. For programs without a loop.

#include <string>

#include "launcher/http/http.hpp"
#include "lib/base/clock.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {

/// The reply to GET `path`. Fails when nothing listens there (`unreachable`), or the whole reply is not there in time
/// (`deadline_passed`).
[[nodiscard]] Result<HttpReply> ask(const SocketAddress& where, std::string_view path, Duration timeout, const Clock& clock);

}  // namespace elrun::inline v0::launcher
