#pragma once
/// \file What is true of the checkpoints of a simulated job, whatever the product believes, and the rules that this truth judges it by.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint/format/names.hpp"

namespace elrun::checkpoint_sim {

/// A broken rule.
struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The states that a job's state came from, and itself, oldest first. Work that is done again comes to another state, so two histories
/// of one step can be told apart.
using History = std::vector<std::uint64_t>;

class CheckpointTruth {
 public:
  void begun(const CheckpointId& id, const History& state);
  /// All see it then.
  void part_written(const CheckpointId& id, std::uint32_t rank);
  void acknowledged(const CheckpointId& id);
  /// The shard of a rank that voted yes is not on the storage that the others see.
  void hidden(const CheckpointId& id, std::uint32_t rank) { saves_.at(id).hidden.insert(rank); }
  /// One of its files is damaged.
  void damaged(const CheckpointId& id) { saves_.at(id).damaged = true; }
  /// Its COMMIT was removed.
  void lost(const CheckpointId& id) { saves_.at(id).lost = true; }

  [[nodiscard]] const History& state_of(const CheckpointId& id) const { return saves_.at(id).state; }
  /// Acknowledged, and neither damaged nor lost; the newest first.
  [[nodiscard]] std::vector<CheckpointId> promises() const;
  [[nodiscard]] std::vector<CheckpointId> all_lost() const;
  /// How many checkpoints were acknowledged so far.
  [[nodiscard]] std::uint64_t promises_made() const { return promises_; }

  // --- the rules ---

  /// A manifest names what every rank has written.
  void check_parts(const CheckpointId& id, std::uint32_t world) const;
  /// What was acknowledged is never lost: a job goes on from the newest promise, or from a state that came from it. A start with the fence
  /// `own` that was overtaken by a later fence owes nothing to what was acknowledged under that one since the start began, when
  /// `promises_made()` was `before`: it may be frozen before it says what it chose, and saves nothing any more.
  void check_choice(const std::optional<CheckpointId>& choice, FenceNumber own, std::uint64_t before) const;
  /// There is one timeline: each checkpoint of it came from the one before it, and the state that a job goes on with from the last.
  void check_line(const std::vector<CheckpointId>& line, const History* state) const;

 private:
  struct Save {
    History state;
    std::set<std::uint32_t> parts{}, hidden{};
    std::uint64_t promised = 0;  // in which order; 0: it was not
    bool damaged = false, lost = false;
  };
  std::map<CheckpointId, Save> saves_;
  std::uint64_t promises_ = 0;
};

}  // namespace elrun::checkpoint_sim
