#pragma once
/// \file HangWatch: which workers have given no sign of progress for too long. Pure.

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

namespace elrun::inline v0::launcher {

class HangWatch {
 public:
  /// `limit` 0: nobody is watched.
  explicit HangWatch(Duration limit) : limit_{limit} {}

  void watch(LocalRank worker, Instant now) {
    if (limit_ > Duration{0}) last_sign_.insert_or_assign(worker, now);
  }
  /// Of a worker that is not watched it means nothing.
  void sign(LocalRank worker, Instant now) {
    if (const auto at = last_sign_.find(worker); at != last_sign_.end()) at->second = now;
  }
  void forget(LocalRank worker) { last_sign_.erase(worker); }
  void clear() { last_sign_.clear(); }

  /// Until `now` nobody could be heard for so long: it counts for no worker, and none is silent for too long before `at`.
  void excuse(Duration deaf, Instant now, Instant at) {
    for (auto& [worker, sign] : last_sign_) sign = std::max(std::min(sign + deaf, now), at - limit_);
  }

  /// When the first of them will have been silent for too long.
  [[nodiscard]] std::optional<Instant> due() const {
    const auto least =
        std::min_element(last_sign_.begin(), last_sign_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    return least == last_sign_.end() ? std::nullopt : std::optional{least->second + limit_};
  }
  [[nodiscard]] std::vector<LocalRank> silent(Instant now) const {
    std::vector<LocalRank> found;
    for (const auto& [worker, at] : last_sign_)
      if (now - at >= limit_) found.push_back(worker);
    return found;
  }

 private:
  Duration limit_;
  std::map<LocalRank, Instant> last_sign_;
};

/// The watches of one node, and how far the end of those that hang has come.
struct HangWatches {
  explicit HangWatches(Duration limit) : in_world{limit}, pending{limit}, unopened{limit} {}

  HangWatch in_world;       ///< Workers in the world.
  HangWatch pending;        ///< Pending workers, until they are ready.
  HangWatch unopened;       ///< Workers in the world that have opened no session yet.
  bool were_asked = false;  ///< Those that hang got SIGABRT; SIGKILL is next.

  void forget(LocalRank worker) { in_world.forget(worker), pending.forget(worker), unopened.forget(worker); }
  /// The generation is over, or its job is: what workers of the world do now is watched by nobody.
  void end_generation() { in_world.clear(), unopened.clear(); }
  void excuse(Duration deaf, Instant now, Instant at) {
    for (HangWatch* watch : {&in_world, &pending, &unopened}) watch->excuse(deaf, now, at);
  }
};

}  // namespace elrun::inline v0::launcher
