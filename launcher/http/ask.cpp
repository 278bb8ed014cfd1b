#include "launcher/http/ask.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>

#include "lib/base/failure.hpp"

namespace elrun::inline v0::launcher {
namespace {

constexpr std::size_t closes_itself_from = 65536;  // bytes: longer replies come from agents, which close the connection

// Until the socket can be written or read; false when the time is over.
bool wait_until_ready(int socket, short events, Deadline deadline, const Clock& clock) {
  for (;;) {
    pollfd p{socket, events, 0};
    const Duration left = std::min<Duration>(deadline.left(clock.now()), 3600s);
    const int got = ::poll(&p, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
    if (got > 0) return true;
    if (got == 0 || errno != EINTR) return false;
  }
}

}  // namespace

Result<HttpReply> ask(const SocketAddress& where, const HttpQuestion& question, Duration timeout, const Clock& clock, std::string_view host,
                      Bytes most) {
  const Deadline deadline = Deadline::after(clock.now(), timeout);
  const auto late = [&] {
    return Failure{Code::deadline_passed, Remedy::retry,
                   fmt::format("{} did not answer within {:.1f} s", to_string(where), std::chrono::duration<double>(timeout).count())};
  };
  ELRUN_TRY_ASSIGN(const Fd socket, connect_begin(where));
  if (!wait_until_ready(socket.get(), POLLOUT, deadline, clock)) return late();
  ELRUN_TRY(connect_result(socket.get(), where));
  const std::string request = encode(question, !host.empty()               ? std::string{host}
                                               : where.family() == AF_UNIX ? "localhost"
                                                                           : to_string(where));
  for (std::size_t sent = 0; sent < request.size();) {
    const ssize_t count = ::send(socket.get(), request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (count > 0) sent += static_cast<std::size_t>(count);
    else if (errno != EINTR && errno != EAGAIN) return from_errno(errno, fmt::format("ask {}", to_string(where)));
    else if (!wait_until_ready(socket.get(), POLLOUT, deadline, clock)) return late();
  }
  std::string reply;
  std::array<char, 16384> chunk;
  for (;;) {
    const ssize_t count = ::recv(socket.get(), chunk.data(), chunk.size(), 0);
    if (count == 0) return read_reply(reply);
    if (count > 0) {
      reply.append(chunk.data(), static_cast<std::size_t>(count));
      // Not all servers close the connection when they were asked to.
      if (reply.size() <= closes_itself_from && is_whole_reply(reply)) return read_reply(reply);
    } else if (errno != EINTR && errno != EAGAIN) return from_errno(errno, fmt::format("hear from {}", to_string(where)));
    if (reply.size() > http_request_max.value() + most.value())
      return Failure{Code::protocol, Remedy::fix_config, fmt::format("{} answers with more than {} bytes", to_string(where), most.value())};
    if (count < 0 && !wait_until_ready(socket.get(), POLLIN, deadline, clock)) return late();
    if (deadline.passed(clock.now())) return late();
  }
}

}  // namespace elrun::inline v0::launcher
