#pragma once
/// \file PreparedPlace: the workers of this node start before it has a place in the world (`Prepare`). Pure.

#include <optional>

#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

struct PreparedPlace {
  std::optional<World> beside{};  ///< As if in which they start. None: the coordinator has not asked for it, or knows what became of it.
  bool was_told = false;          ///< The coordinator knows that all of them are ready.
  std::optional<NotPrepared> failure{};  ///< The first of them that has ended
};

}  // namespace elrun::inline v0::launcher
