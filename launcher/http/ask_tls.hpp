#pragma once
/// \file Ask by TLS: one question to an HTTPS server whose certificate a given authority has signed. Blocks: not for a loop.

#include <string>

#include "launcher/http/http.hpp"
#include "lib/base/clock.hpp"
#include "lib/base/files.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {

/// Whom to believe, and who is meant.
struct TlsPeer {
  SocketAddress where;
  std::string host;  ///< A name or a literal address that the certificate must have.
  Path ca_file;      ///< PEM. No other authority is believed.
};

/// The reply, within `timeout`, of at most `most` bytes. Nothing of the question is sent before the server has proved who it is.
[[nodiscard]] Result<HttpReply> ask_tls(const TlsPeer& peer, const HttpQuestion& question, Duration timeout, const Clock& clock,
                                        Bytes most);

}  // namespace elrun::inline v0::launcher
