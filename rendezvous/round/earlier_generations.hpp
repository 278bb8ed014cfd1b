#pragma once
/// \file EarlierGenerations: what is known of generations that this coordinator did not see begin, and whose members it waits for. Pure.
///
/// What always holds: the floor only grows, and every generation that begins here has a number above it.

#include <cstdint>
#include <optional>

#include <elrun/ids.hpp>
#include <elrun/units.hpp>

#include "lib/base/planted.hpp"
#include "rendezvous/messages.hpp"
#include "rendezvous/round/node_table.hpp"
#include "rendezvous/round/stall.hpp"

namespace elrun::inline v0 {

class EarlierGenerations {
 public:
  /// `floor`: the number of the newest generation on record. `may_run`: another coordinator began that one, and its members may be on their
  /// way here.
  EarlierGenerations(std::uint64_t floor, bool may_run) : first_floor_{floor}, may_run_{may_run}, floor_{floor} {}

  /// A node joins, and says which generations it has seen or heard of.
  void learn_from(const Join& join);
  /// The same of a node that joins before a generation has begun here. `wait`: so long members of a generation that may still run are waited
  /// for.
  void note(const Join& join, Duration wait, Instant now);

  /// The newest number that any node, or the record, knows of.
  [[nodiscard]] std::uint64_t floor() const { return floor_; }
  /// No node knew of a newer one than the record, and none has begun here.
  [[nodiscard]] bool none_is_new() const { return floor_ == first_floor_; }
  /// The number of the generation that begins now.
  [[nodiscard]] std::uint64_t next_number();

  /// Members of a generation that others may still run come first: nothing begins until then.
  [[nodiscard]] Instant hold_until() const { return hold_until_; }
  void excuse(const Stall& stall) { stall.excuse(hold_until_); }
  /// Its members have come, or it is known to be over.
  void end_hold() { hold_until_ = {}; }

  /// The newest generation that nodes come from whose workers are gone.
  [[nodiscard]] const std::optional<Generation>& ended() const { return ended_; }
  [[nodiscard]] std::uint32_t ended_nodes() const { return ended_nodes_; }
  struct Limits {
    Duration last_call;    ///< Of the first generation of a job.
    Duration workers_end;  ///< The workers of a node have ended within this, or the node counts as lost;
    Duration
        stop_grace;  ///< and so much of that is its workers' grace. A node with a longer `--shutdown_timeout` gets the difference on top.
  };
  /// How long those who wait let others come, where no generation has begun here. `is_full`: they are as many as there is room for. Last
  /// call is for the first generation of a job. Where one was over before this coordinator came, it is waited for whoever is left of that,
  /// no longer than live agents take to reconnect; while a node that is here still ends its workers, until they have ended. Its members have
  /// the job's state, so they are waited for even where spares fill the room.
  [[nodiscard]] Duration last_call(const NodeTable& nodes, bool is_full, const Limits& limits) const;

 private:
  ELRUN_COMPARED_IN_SIMULATION
  [[nodiscard]] bool whoever_is_left_waits(const NodeTable& nodes) const;

  std::uint64_t first_floor_;
  bool may_run_;
  std::uint64_t floor_;
  Instant hold_until_{};
  std::optional<Generation> ended_;
  std::uint32_t ended_nodes_ = 0;  // that it had
};

}  // namespace elrun::inline v0
