#pragma once
/// \file AsyncSaves: saves that go on while the job trains: whether they are possible, one at a time, and what became of the last one on all ranks.
///
/// A rank hears of its save's end when its own ckptd says so, so ranks hear at different steps. Nothing is decided by that: at the next border where a save is
/// due all ranks tell each other what they have heard (`agree`), and decide the same.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/job/job_host.hpp"
#include "lib/job/save/saves.hpp"
#include "lib/job/save/staging.hpp"
#include "lib/job/world.hpp"

namespace elrun::inline v0 {

class AsyncSaves {
 public:
  /// Both outlive it.
  AsyncSaves(const JobHost& host, JobWorld& world)
      : host_{host}, world_{world}, staging_{host.slot_writer ? host.slot_writer() : slot_writer_at(host.checkpoint_writer), host.clock} {}

  /// A generation begins, on all ranks. What is under way gets a last minute. `host_bytes`: of host state, as far as it is known by now.
  void open(const Saves& saves, std::uint64_t host_bytes);
  /// On all ranks, after `open`: takes the slot's memory, where every node has it for its ranks.
  void take_memory();
  /// Before this job looks for a checkpoint: what workers before this one have sealed is on the storage then, or given up. On this rank; how its own save ended, if it
  /// was heard here. Waits no longer than `wait`.
  std::optional<SaveOutcome> wait_for_others(std::optional<Duration> wait = std::nullopt);

  /// On this rank, until `deadline` at most: how the save under way ended; nothing while it goes on, and where there is none.
  std::optional<SaveOutcome> hear(Deadline deadline);
  /// A save of this rank is under way, and ckptd may still write it.
  [[nodiscard]] bool is_busy() const { return staging_.is_busy(); }
  /// And nobody waits for it any more: its ckptd has said nothing for longer than a save may take.
  [[nodiscard]] bool is_overdue() const { return staging_.is_overdue(); }
  /// Training waits for the save under way.
  void hurry() { staging_.hurry(); }

  /// What all ranks together know, on all ranks: the same.
  struct Agreed {
    bool possible = false;               ///< Each has memory and a ckptd that answers.
    bool busy = false;                   ///< Some rank's save is not over, and not overdue.
    bool overdue = false;                ///< Some rank's ckptd does not answer.
    std::optional<std::uint64_t> saved;  ///< The newest step that was saved so since the last `agree`.
    std::optional<SaveOutcome> failed;   ///< One that failed, and that no `agree` has told of.
  };
  /// Where nothing is begun now.
  [[nodiscard]] Agreed agree() { return agree(false); }
  /// Where all agree, `begin` with this host state or `withdraw` follows. A worker that ends before either costs the others no wait.
  [[nodiscard]] Agreed agree_to_begin(std::span<const Aux> host_state);
  void withdraw() { staging_.withdraw(); }

  /// On all ranks, after an `agree` that says possible and not busy, under a fence that is claimed. The state must not change before `finish_copy`. A failure is one
  /// of this save, and `hear` tells it.
  void begin(const Saves& saves, std::uint64_t step, const std::vector<Aux>& host_state);
  void finish_copy() { staging_.finish_copy(); }

 private:
  Agreed agree(bool promises);
  /// Of this rank's record, and with room to grow.
  [[nodiscard]] std::uint64_t record_bytes() const;
  [[nodiscard]] std::uint64_t record_room() const;
  [[nodiscard]] bool has_room() const;
  [[nodiscard]] bool is_ready();
  const JobHost& host_;
  JobWorld& world_;
  Staging staging_;
  const Saves* saves_ = nullptr;  // of this generation
  SlotLayout layout_;
  std::uint64_t host_bytes_ = 0;  // the leader's slot has the host state
  bool is_on_ = false;            // on all ranks of this generation
  std::optional<SaveOutcome> heard_{}, failed_to_begin_{};
  std::uint64_t acted_fence_ = 0, acted_step_ = ~std::uint64_t{0};  // the failed save that `agree` told of last
};

}  // namespace elrun::inline v0
