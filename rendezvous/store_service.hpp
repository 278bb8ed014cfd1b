#pragma once
/// \file The store for clients outside: programs that are no workers of the job. Beside the agents' streams, on the same port.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>

#include "rendezvous/stream.hpp"

namespace grpc {
class CallbackServerContext;
class Service;
}  // namespace grpc

namespace elrun::inline v0 {

constexpr std::size_t store_calls_per_stream_max = 65536;  ///< Under way at one time on one stream; one more is refused.

constexpr std::size_t store_streams_max = 65536;           ///< Clients at one time.

class StoreService {
 public:
  virtual ~StoreService() = default;
  /// For the server's builder. It belongs to this object, which outlives the server.
  [[nodiscard]] virtual grpc::Service& service() = 0;
  /// Ends every stream at once; before the server is shut down.
  virtual void close() = 0;
};

/// Why a client may not come in, on gRPC's threads; nothing when it may.
using StoreRefusal = std::function<std::optional<std::string>(const grpc::CallbackServerContext&)>;

/// `owner` is used on the loop alone, until `close`.
[[nodiscard]] std::unique_ptr<StoreService> make_store_service(boost::asio::io_context& loop, StreamOwner& owner, StoreRefusal refusal);

}  // namespace elrun::inline v0
