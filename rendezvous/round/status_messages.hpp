#pragma once
/// \file StatusMessages: when waiting nodes are told what the round waits for, and which of them know it already. Pure.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <elrun/units.hpp>

#include "lib/base/planted.hpp"

namespace elrun::inline v0 {

/// Delay before waiting nodes get a status message about a change. It grows with the number of nodes that were told last, so that in a world
/// of thousands status messages stay cheaper than the rendezvous itself.
constexpr Duration status_debounce = 100ms;
constexpr Duration status_per_node = 5ms;
/// Nodes that join put the next message off, but not beyond this long after the round began: most of them get a world instead.
constexpr Duration status_put_off_max = 10s;

class StatusMessages {
 public:
  /// What a waiting node is told: `until` is an instant, so that the text changes only when the reason does.
  struct Reason {
    std::string why;
    std::optional<Instant> until;
    std::string then;
  };

  /// True if the messages are to be sent now; then the next ones are not due until `sent`.
  [[nodiscard]] bool due(Instant now) {
    if (!next_) next_ = now + status_debounce;
    if (now < *next_) return false;
    next_.reset();
    return true;
  }
  /// Numbers the reason. Nodes that know this number need no message.
  std::uint64_t number_of(const Reason& reason);
  /// So many nodes got a message.
  void sent(std::size_t nodes, Instant now) {
    if (nodes > 0) next_ = now + status_debounce + status_per_node * static_cast<Duration::rep>(nodes);
  }
  /// A node joined, in a round that began to form then.
  void put_off(Instant forming_since, Instant now) {
    if (next_) next_ = std::max(*next_, std::min(now + status_debounce, forming_since + status_put_off_max));
  }
  [[nodiscard]] std::optional<Instant> next() const { return next_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::optional<Instant> next_;
  std::string newest_;        // the last reason
  std::uint64_t number_ = 0;  // its number
};

}  // namespace elrun::inline v0
