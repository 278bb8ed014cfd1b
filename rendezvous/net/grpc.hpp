#pragma once
/// \file What server and client agree on about gRPC.

#include <elrun/units.hpp>

#include "rendezvous/net/wire.hpp"

namespace elrun::inline v0 {

/// Bytes that wait to be written to one stream; beyond it the peer does not read, and the stream is given up.
constexpr Bytes stream_queue_max = 256_MiB;

/// Bytes that may be on their way in one stream before the reader took any.
constexpr int stream_window = 1 << 20;

/// Store calls and answers that go together in one message, unless a single one is larger.
constexpr Bytes store_batch_max = 1_MiB;

/// gRPC prints its own view of failures to standard error. Each one also comes back as a status, which is said once in
/// elrun's words; GRPC_VERBOSITY, which gRPC reads itself, brings the original back.
void quiet_grpc();

}  // namespace elrun::inline v0
