#pragma once
/// \file Protobuf to values and back. What comes in is checked field by field, for it may come from anybody.

#include <optional>

#include <elrun/result.hpp>

#include "rendezvous/messages.hpp"

namespace elrun::wire {
class ToCoordinator;
class ToNode;
}  // namespace elrun::wire

namespace elrun::inline v0 {

constexpr std::size_t wire_name_max = 1024;      ///< Of a node, an address, a version, a run
constexpr std::size_t wire_text_max = 64 << 10;  ///< Of a sentence; what is sent is cut to this
constexpr Bytes wire_message_max = 48_MiB;       ///< Of a whole message: a store call, or the roster of a large world

/// Fills `out`, which the caller provides: protobuf's classes stay incomplete here.
void to_wire(const NodeMessage& message, wire::ToCoordinator& out);
void to_wire(const CoordinatorMessage& message, wire::ToNode& out);
/// `protocol` names the field that is out of bounds. A message of a kind that is not known is not an error but nothing.
[[nodiscard]] Result<std::optional<NodeMessage>> from_wire(const wire::ToCoordinator& in);
[[nodiscard]] Result<std::optional<CoordinatorMessage>> from_wire(const wire::ToNode& in);

/// The same from serialised bytes (tests, fuzzers).
[[nodiscard]] Result<std::optional<NodeMessage>> node_message_from_bytes(ByteSpan bytes);
[[nodiscard]] Result<std::optional<CoordinatorMessage>> coordinator_message_from_bytes(ByteSpan bytes);
[[nodiscard]] ByteVector to_wire_bytes(const NodeMessage& message);
[[nodiscard]] ByteVector to_wire_bytes(const CoordinatorMessage& message);

}  // namespace elrun::inline v0
