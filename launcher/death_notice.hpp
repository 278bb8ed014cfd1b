#pragma once
/// \file DeathNotice: what the guard tells the coordinator when the agent was killed. The agent keeps it up to date in the guard's process.

#include <optional>

#include "lib/base/bytes.hpp"
#include "lib/base/clock.hpp"
#include "rendezvous/net/node_link.hpp"

namespace elrun::inline v0::launcher {

/// The coordinator has the notice within this, or loses the node as without a guard.
constexpr Duration death_notice_timeout = 2s;

struct DeathNotice {
  LineTarget target;  ///< Of the line that the agent had
  AgentEnded ended;
};

/// As it goes to the guard; empty for none, and for one with names of more than `death_notice_max` bytes.
[[nodiscard]] ByteVector encoded(const std::optional<DeathNotice>& death_notice);
/// Nothing where the bytes are no death notice.
[[nodiscard]] std::optional<DeathNotice> death_notice_from(ByteSpan bytes);

/// In the guard's process. Where the coordinator cannot be told, nothing happens.
void send_death_notice(ByteSpan bytes, const Access& access, const Clock& clock);

}  // namespace elrun::inline v0::launcher
