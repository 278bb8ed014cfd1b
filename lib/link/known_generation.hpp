#pragma once
/// \file KnownGeneration: which generation the other end of a session has told of last. Pure.

#include <optional>

#include <elrun/failure.hpp>
#include <elrun/ids.hpp>

#include "lib/link/message.hpp"

namespace elrun::inline v0 {

/// Words about any other generation than the newest are late, and are passed over. An end that was told before the first place counts when
/// that place comes.
class KnownGeneration {
 public:
  /// This worker has been given its first place.
  [[nodiscard]] bool has_place() const { return has_place_; }
  [[nodiscard]] const Generation& newest() const { return newest_; }
  /// There is a place, and it is of this generation.
  [[nodiscard]] bool is_newest(const Generation& generation) const { return has_place_ && generation == newest_; }
  /// A place in this one would be a later one.
  [[nodiscard]] bool is_later(const Generation& generation) const { return generation.number > newest_.number; }

  /// An end that came before the first place. The last one counts.
  void note_early_end(const GenerationOver& over) { early_end_ = over; }
  /// The first place. Returns why its generation is over already, if it is.
  [[nodiscard]] std::optional<Failure> enter_first(const Generation& generation) {
    has_place_ = true;
    newest_ = generation;
    if (early_end_ && early_end_->generation == newest_) return early_end_->why;
    return {};
  }
  void enter_next(const Generation& generation) { newest_ = generation; }

 private:
  bool has_place_ = false;
  Generation newest_{};
  std::optional<GenerationOver> early_end_;
};

}  // namespace elrun::inline v0
