#pragma once
/// \file Losses: what this node's workers lost in a generation, and how long the job takes to recover from it. Pure.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

constexpr std::size_t unreachable_why_max = 300;  ///< Bytes of why a peer cannot be reached.

/// Why a worker of this node, which lives, cannot go on in its generation.
struct LossReport {
  std::uint32_t worker = 0;  ///< By local rank.
  std::string why{};         ///< In its words.
  bool own = false;          ///< A failure of its own, not the loss of a peer.
};

/// What workers of this node reported about peers that they lost in this generation.
class LostPeers {
 public:
  void clear() { first_.reset(), unreachable_.clear(); }
  /// True the first time in a generation. The first report is the reason, but a failure of a worker's own explains what its peers lost.
  bool add(LossReport report) {
    const bool is_first = !first_;
    if (is_first || (report.own && !first_->own)) first_ = std::move(report);
    return is_first;
  }
  /// True when `worker` has not said of a peer yet that it cannot be reached: the coordinator has to know.
  bool add_unreachable(PeerUnreachable peer) {
    if (std::any_of(unreachable_.begin(), unreachable_.end(), [&](const PeerUnreachable& u) { return u.rank == peer.rank; })) return false;
    peer.what.resize(std::min(peer.what.size(), unreachable_why_max));
    unreachable_.push_back(std::move(peer));
    return true;
  }
  [[nodiscard]] bool any() const { return first_.has_value(); }
  /// The reason. Only where there is any.
  [[nodiscard]] const LossReport& first() const { return *first_; }
  [[nodiscard]] const std::vector<PeerUnreachable>& unreachable() const { return unreachable_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  std::optional<LossReport> first_;
  std::vector<PeerUnreachable> unreachable_;
};

/// From a loss to the first step that is decided after it, over as many generations as that takes.
class RecoveryTime {
 public:
  void lost(Instant now) {
    if (!lost_) since_ = now;
    lost_ = true;
  }
  /// A generation begins.
  void begin_generation() { lost_ = false; }
  /// How long ago the loss was from which the job is recovering.
  [[nodiscard]] std::optional<Duration> so_far(Instant now) const { return since_ ? std::optional{now - *since_} : std::nullopt; }
  /// A step was decided: how long the recovery took, if there was one to end.
  [[nodiscard]] std::optional<Duration> recovered(Instant now) {
    if (!since_ || lost_) return std::nullopt;
    return now - *std::exchange(since_, std::nullopt);
  }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  bool lost_ = false;  // in this generation: a worker or node of it
  std::optional<Instant> since_;
};

}  // namespace elrun::inline v0::launcher
