#pragma once
/// \file LastWord: what the guard tells the coordinator when the agent was killed. The agent keeps it up to date in the guard's process.

#include <optional>

#include "lib/base/bytes.hpp"
#include "lib/base/clock.hpp"
#include "rendezvous/net/node_link.hpp"

namespace elrun::inline v0::launcher {

/// The coordinator has the last word within this, or loses the node as without a guard.
constexpr Duration last_word_limit = 2s;

struct LastWord {
  LineTarget target;  ///< Of the line that the agent had
  AgentEnded ended;
};

/// As it goes to the guard; empty for none, and for one with names of more than `last_word_max` bytes.
[[nodiscard]] ByteVector encoded(const std::optional<LastWord>& last_word);
/// Nothing where the bytes are no last word.
[[nodiscard]] std::optional<LastWord> last_word_from(ByteSpan bytes);

/// In the guard's process. Where the coordinator cannot be told, nothing happens.
void say_last_word(ByteSpan bytes, const Access& access, const Clock& clock);

}  // namespace elrun::inline v0::launcher
