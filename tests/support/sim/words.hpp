#pragma once
/// \file What is said, in words for a trace; and what of a world the checkers compare.

#include <string>

#include "rendezvous/messages.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

[[nodiscard]] std::string words(const NodeMessage& message);
[[nodiscard]] std::string words(const CoordinatorMessage& message);
[[nodiscard]] Told told(const World& world);

}  // namespace elrun::sim
