#pragma once
/// \file Ask: one question to an HTTP server, such as an agent's admin endpoint, and its answer, within a deadline. Blocks: not for a loop.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "launcher/http/http.hpp"
#include "lib/base/clock.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {

/// The reply to a question. Fails when nothing listens there (`unreachable`; `not_found` of a Unix socket that is not there), or the whole reply is not there in time
/// (`deadline_passed`), or is longer than `most`. `host`: as the question names the server; empty: by its address.
[[nodiscard]] Result<HttpReply> ask(const SocketAddress& where, const HttpQuestion& question, Duration timeout, const Clock& clock,
                                    std::string_view host = {}, Bytes most = http_reply_max);

/// Nobody listens at the Unix socket that was asked, as in a directory that was left behind. Any other failure says nothing of whether somebody is there.
[[nodiscard]] inline bool has_no_listener(const Failure& failure) {
  return failure.code == Code::unreachable || failure.code == Code::not_found;
}

/// The first reply from the addresses of one name, asked in their order by `ask_one`, or the first failure, with what the others failed of. Each has the same share of the time that is
/// left, so one that is silent leaves some to the others.
template <class AskOne>
[[nodiscard]] Result<HttpReply> ask_first(std::span<const SocketAddress> addresses, Duration timeout, const Clock& clock, AskOne ask_one) {
  const Deadline deadline = Deadline::after(clock.now(), timeout);
  std::optional<Failure> failure;
  while (true) {
    Result<HttpReply> reply = ask_one(addresses.front(), deadline.left(clock.now()) / static_cast<std::int64_t>(addresses.size()));
    addresses = addresses.subspan(1);
    if (reply.ok()) return reply;
    if (!failure) failure = reply.failure();
    else failure->what += "; " + reply.failure().what;
    if (addresses.empty()) return *std::move(failure);
  }
}

}  // namespace elrun::inline v0::launcher
