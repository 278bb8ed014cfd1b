#pragma once
/// \file The store for clients outside: programs that are no workers of the job. Beside the agents' streams, on the same port.

#include <cstddef>
#include <memory>

#include "rendezvous/net/stream.hpp"

namespace elrun::inline v0 {

struct GrpcCall;

constexpr std::size_t store_calls_per_stream_max = 65536;  ///< Under way at one time on one stream; one more is refused.

constexpr std::size_t store_streams_max = 65536;  ///< Clients at one time.

/// Counts the clients that are there.
class StoreClients {
 public:
  using Place = std::shared_ptr<const StoreClients*>;
  /// Nothing when all are taken; else free again when it is destroyed.
  [[nodiscard]] Place take_place() { return static_cast<std::size_t>(places_.use_count()) > store_streams_max ? nullptr : places_; }

 private:
  Place places_ = std::make_shared<const StoreClients*>(this);  // one copy for each client
};

/// A client has called; the stream lives on by itself. Until `open` expires; loop thread only.
void open_store_stream(std::unique_ptr<GrpcCall> call, std::weak_ptr<void> open, const std::shared_ptr<StreamOwner*>& owner,
                       StoreClients& clients);

}  // namespace elrun::inline v0
