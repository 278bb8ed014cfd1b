#pragma once
/// \file LogPlace: the place of the logs, asked by the loop.

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <elrun/units.hpp>

#include "launcher/process/answers_in_time.hpp"

namespace elrun::inline v0::launcher {

/// A place may be on a server that is away, and then each call there may hang for good. The loop waits for one for a bounded time. As long as that one
/// hangs, it makes no other, so that the ends of many workers cost no more than one wait. Loop thread only; a call holds nothing of the agent's.
class LogPlace {
 public:
  /// Without a limit it is asked directly: the agent's own directory, where no server can be away.
  explicit LogPlace(std::optional<Duration> limit) : limit_{limit} {}

  /// None: the place does not answer.
  template <class Answer>
  [[nodiscard]] std::optional<Answer> ask(std::function<Answer()> call) {
    if (!limit_) return call();
    if (hangs()) return {};
    auto held = std::make_shared<char>();
    asked_ = held;
    return answer_in_time<Answer>([call, held = std::move(held)] { return call(); }, *limit_);
  }
  /// A call has not come back yet.
  [[nodiscard]] bool hangs() const { return !asked_.expired(); }

 private:
  std::optional<Duration> limit_;
  std::weak_ptr<char> asked_;  // there as long as the newest call is
};

}  // namespace elrun::inline v0::launcher
