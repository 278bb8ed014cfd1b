#pragma once
/// \file The seam between the coordinator's loop and what carries its streams (gRPC, or this process).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include <elrun/result.hpp>

#include "lib/base/clock.hpp"
#include "lib/base/log.hpp"
#include "lib/base/timeouts.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/net/access.hpp"
#include "rendezvous/round/round.hpp"

namespace elrun::inline v0 {

constexpr std::size_t newcomers_max = 16384;
constexpr Bytes server_memory_max = 4_GiB;

/// The coordinator's end of one stream. Loop thread only; neither call runs anything of the node's in the caller's stack.
class StreamEnd {
 public:
  virtual ~StreamEnd() = default;
  virtual void send(const CoordinatorMessage& message) = 0;
  /// Closes the stream after all sent messages are written. The owner gets no further events.
  virtual void close() = 0;
};

/// What streams tell the coordinator; loop thread only.
class StreamOwner {
 public:
  /// For a stream that is about to be answered. A node sends nothing before that, so a larger number means that its stream came later.
  virtual StreamNumber number_stream() = 0;
  /// `from`: the literal address of the node's host, as this one sees it. Empty where the node is in this process.
  virtual void opened(StreamNumber number, std::shared_ptr<StreamEnd> end, bool in_process, std::string from) = 0;
  /// Of a client that is no node: it makes store calls and nothing else.
  virtual StreamNumber opened_outside(std::shared_ptr<StreamEnd> end) = 0;
  virtual void received(StreamNumber stream, const NodeMessage& message) = 0;
  virtual void broken(StreamNumber stream) = 0;
  /// By a guard, whose access was checked as a node's is.
  virtual void on_guard_report(const AgentEnded& ended) = 0;

 protected:
  ~StreamOwner() = default;
};

/// The gRPC service. Its destructor ends every stream at once and waits for gRPC's own threads alone, never for a peer.
class StreamServer {
 public:
  virtual ~StreamServer() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
};

struct StreamServerOptions {
  Access access;
  Duration patience = Timeouts{}.newcomer;  ///< Each step of a new connection, up to its Join, has to happen within this.
  std::size_t waiting_max = newcomers_max;  ///< Of streams that do not join.
  Bytes memory_max = server_memory_max;     ///< Of what gRPC holds; beyond it connections and streams are ended.
};

/// `owner` is told of a stream with its Join, not before. It outlives the server, as do clock and log. The first use of
/// gRPC in this process.
[[nodiscard]] Result<std::unique_ptr<StreamServer>> start_stream_server(boost::asio::io_context& loop, const Clock& clock, const Log& log,
                                                                        StreamOwner& owner, const std::string& address, std::uint16_t port,
                                                                        StreamServerOptions options);

}  // namespace elrun::inline v0
