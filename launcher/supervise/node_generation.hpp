#pragma once
/// \file NodeGeneration: the newest generation as this node sees it. Pure.

#include <cstdint>
#include <optional>
#include <string>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "launcher/supervise/losses.hpp"
#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"

namespace elrun::inline v0::launcher {

/// Owns the world that this node was told last, and what happened in it: the steps that were decided, the peers that were lost, and
/// whether a worker of this node ended it. All that is forgotten with the next world. Number 0: there was none yet.
class NodeGeneration {
 public:
  /// `places`: how many the node wants in its first world.
  explicit NodeGeneration(std::uint32_t places) : places_{places} {}

  /// A world begins. Returns the one before.
  World begin(const World& world, Instant now);
  /// Its number is not above the newest: its end was acknowledged here, and nobody acts for it again.
  [[nodiscard]] bool is_past(const World& world) const { return world.generation.number <= last().number; }
  /// The places that this node asked for are not all in it.
  [[nodiscard]] bool lacks_places(const World& world) const;
  /// Of which a coordinator says now that this node of it coordinates.
  void resume(std::optional<std::uint32_t> coordinated_by) { world_.coordinated_by = coordinated_by; }

  [[nodiscard]] const World& world() const { return world_; }
  [[nodiscard]] const Generation& last() const { return world_.generation; }
  /// Workers that stay may still say that it ended the job.
  [[nodiscard]] const Generation& before() const { return before_; }
  [[nodiscard]] Duration age(Instant now) const { return now - began_at_; }
  [[nodiscard]] bool has_others() const { return world_.seat.world_size != 1; }
  /// A rank of this node.
  [[nodiscard]] bool has_rank(Rank rank) const;
  /// How many workers this node has in it, or wants in the next one.
  [[nodiscard]] std::uint32_t places() const { return places_; }
  void want_places(std::uint32_t places) { places_ = places; }

  /// A worker of this node ended it.
  void fail_here() { failed_here_ = true; }
  [[nodiscard]] bool failed_here() const { return failed_here_; }
  /// True when no worker of this node said so yet.
  [[nodiscard]] bool decide(std::uint64_t step);
  /// The highest that was decided in it; 0: none.
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] LostPeers& lost_peers() { return lost_peers_; }
  [[nodiscard]] const LostPeers& lost_peers() const { return lost_peers_; }

 private:
  ELRUN_COMPARED_IN_SIMULATION
  World world_;
  Generation before_{};
  std::uint32_t places_;
  Instant began_at_{};
  bool failed_here_ = false;
  std::uint64_t step_ = 0;
  LostPeers lost_peers_;
};

/// What the log says when a world begins.
struct WorldSummary {
  std::size_t staying = 0;             ///< Workers that go on in the same process
  std::size_t ready = 0;               ///< Workers that were started meanwhile and join
  std::size_t beside = 0;              ///< Workers that are started beside it
  bool has_workers = true;             ///< This node starts workers.
  std::int32_t max_restarts = 0;       ///< The budget
  std::optional<Duration> recovering;  ///< How long ago something was lost
};
[[nodiscard]] std::string describe_world(const NodeGeneration& generation, const WorldSummary& news);

}  // namespace elrun::inline v0::launcher
