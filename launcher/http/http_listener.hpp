#pragma once
/// \file HttpListener: answers requests on a port or a Unix socket, on the agent's loop and without ever holding it up.

#include <functional>
#include <memory>

#include <boost/asio/io_context.hpp>

#include "launcher/http/http.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0::launcher {

/// That have not asked, or of which the answer is on its way (a quarter of the process's descriptors at most). One more, and the
/// oldest goes: silent connections keep no others out. So many that one who asks is heard among thousands that come each second.
constexpr std::size_t http_connections_max = 256;
constexpr Duration http_time_max = 5s;  ///< From the connection to the end of the reply.

/// Lives on the loop. The destructor closes everything and waits for nobody; not from an answer.
class HttpListener {
 public:
  using Answer = std::function<HttpReply(const HttpRequest&)>;
  static Result<std::unique_ptr<HttpListener>> open(boost::asio::io_context& loop, const SocketAddress& address, Answer answer);
  virtual ~HttpListener() = default;
  [[nodiscard]] virtual const SocketAddress& address() const = 0;  ///< With the port that was found when 0 was asked for.
};

}  // namespace elrun::inline v0::launcher
