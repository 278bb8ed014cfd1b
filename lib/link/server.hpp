#pragma once
/// \file WorkerServer: the agent's side of the worker protocol (and rank 0's, in an operator's job).

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "lib/base/files.hpp"
#include "lib/link/message.hpp"
#include "lib/link/socket.hpp"

namespace elrun::inline v0 {

/// Over TCP both ends send Alive; whoever was silent for this long is lost. Longer than between agents: an operator's job
/// ends with the loss of a member, so a machine that was paused for a moment should not look like one. The death of a
/// process is seen at once, by the end of its connection.
constexpr Duration tcp_silence_max = 30s;

/// Connections over TCP of which no Hello was accepted (`expect`), refused ones that have not ended among them. More wait in the system's backlog, until one of these is accepted or
/// ends, or has been open for `unauthenticated_turn`.
constexpr std::size_t unauthenticated_max = 512;
constexpr Duration unauthenticated_turn = 500ms;

/// Listens on a Unix socket (in a directory of mode 0700; peers of another user are refused) or on TCP, and turns
/// frames into calls. Everything happens on the loop's one thread; nothing here decides anything. Over a Unix socket
/// `Hello::pid` is what the kernel says. The destructor closes everything and waits for nobody; not from a handler.
class WorkerServer {
 public:
  using Connection = std::uint64_t;  ///< Numbers a connection, never reused.
  struct Handler {
    std::function<void(Connection, const Message&)> message;
    std::function<void(Connection, const Failure&)> closed;  ///< The worker is gone, or said what no worker says. Not after `close`.
  };
  static Result<std::unique_ptr<WorkerServer>> listen_unix(boost::asio::io_context& loop, const Path& socket, Handler handler);
  /// At each of these addresses, at least one: those of a name, of which a worker may know any. Of the others than the first one those that this host does not have are left out.
  static Result<std::unique_ptr<WorkerServer>> listen_tcp(boost::asio::io_context& loop, const std::vector<SocketAddress>& addresses,
                                                          Handler handler);
  virtual ~WorkerServer() = default;
  /// At this Unix socket as well; what is connected stays so. Of `listen_unix` alone.
  virtual Result<void> listen_also(const Path& socket) = 0;
  /// Queues a message; a connection whose queue is beyond its bound is closed.
  virtual void send(Connection to, const Message& message) = 0;
  /// What is queued is sent first.
  virtual void close(Connection connection) = 0;
  /// Where a connection over TCP comes from, of which no Hello was accepted; else nothing.
  [[nodiscard]] virtual std::string peer(Connection connection) const = 0;
  [[nodiscard]] virtual std::uint16_t port() const = 0;  ///< Of a TCP listener.
  [[nodiscard]] virtual bool is_loopback() const = 0;
  /// Its Hello was accepted: it no longer counts as unauthenticated, and is not closed to make room for another. Over TCP its frames stay
  /// bounded by `unauthenticated_message_max` until `trust`.
  virtual void expect(Connection connection) = 0;
  virtual void trust(Connection connection) = 0;
};

}  // namespace elrun::inline v0
