#pragma once
/// \file Ask: one question to an HTTP server, such as an agent's admin endpoint, and its answer, within a deadline. Blocks: not for a loop.

#include <string>

#include "launcher/http/http.hpp"
#include "lib/base/clock.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {

/// The reply to a question. Fails when nothing listens there (`unreachable`), or the whole reply is not there in time
/// (`deadline_passed`), or is longer than `most`. `host`: as the question names the server; empty: by its address.
[[nodiscard]] Result<HttpReply> ask(const SocketAddress& where, const HttpQuestion& question, Duration timeout, const Clock& clock,
                                    std::string_view host = {}, Bytes most = http_reply_max);

}  // namespace elrun::inline v0::launcher
