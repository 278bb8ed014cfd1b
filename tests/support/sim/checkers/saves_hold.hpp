#pragma once
/// \file Saves that go on while workers train. What is acknowledged has its COMMIT, and no later start goes on from less, nor a world of members that have an older state. Under one fence acknowledged steps grow.
/// A member of an earlier generation that was frozen, and thaws, may still go on from what was decided then: nobody hears of what it does.
/// The sealed slot of a worker that is gone is written, and of one that was being filled the others hear. A slot does not change while it is written. Who is told that all is settled is told the truth. A node holds
/// no more slots than its workers have, and as many again of workers before them. Where nothing goes wrong, no save fails.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "tests/support/sim/checkers/report.hpp"
#include "tests/support/sim/observations.hpp"

namespace elrun::sim {

struct SavesHold {
  static constexpr std::string_view name = "saves-hold";
  bool is_calm = false;  // nothing goes wrong

  void on(const CheckpointAcknowledged& one, Report& report) {
    if (!one.is_committed)
      report.violate(name, fmt::format("process {} acknowledges the checkpoint of step {} under fence {}, which has no COMMIT",
                                       one.by.value(), one.step, one.fence));
    const auto [at, is_first] = steps_.try_emplace(one.fence, one.step);
    if (!is_first && one.step < at->second)
      report.violate(name, fmt::format("under fence {} step {} is acknowledged after step {}", one.fence, one.step, at->second));
    at->second = std::max(at->second, one.step);
    std::uint64_t& newest = newest_[generation_][one.fence];
    newest = std::max(newest, one.step);
    Saved& saved = saved_[one.fence];
    saved = std::max(saved, Saved{one.fence, one.step, begun_});
  }
  void on(const GenerationBegan& began, Report&) {
    begun_ = std::max(begun_, began.generation.number);
    worlds_.try_emplace(began.generation.lineage, worlds_.size());
    Saved& before = saved_before_[{began.generation.lineage, began.generation.number}];
    for (const auto& [fence, saved] : saved_)
      if (!is_of_a_world_beside(fence, began.generation.lineage)) before = std::max(before, saved);
  }
  /// A world of members that were spares meanwhile has an older state, and may not go on from it. (A step that a member voted for, and others decided while it was away, it applies here: that is none that is done again.)
  void on(const StepHandedOut& one, Report& report) {
    const auto saved = saved_before_.find({one.generation.lineage, one.generation.number});
    if (saved != saved_before_.end() && saved->second.generation > loaded_in_ && one.step < saved->second.step)
      report.violate(
          name,
          fmt::format("worker#{} gets step {} in generation {}, although a checkpoint of {} decided steps was acknowledged before that "
                      "began, under fence {}",
                      one.worker.value(), one.step, one.generation.number, saved->second.step, saved->second.fence));
  }
  void on(const WorkerStarted& one, Report&) {
    generations_[one.worker] = one.generation.number;
    generation_ = std::max(generation_, one.generation.number);
  }
  void on(const PlaceTaken& one, Report&) { places_[one.worker] = one.generation; }
  void on(const FenceClaimed& one, Report&) {
    claims_[{one.generation.lineage, one.generation.number}] = one.fence;
    claimed_by_.try_emplace(one.fence, Claim{one.generation.lineage, worlds_.size()});
  }
  /// What is acknowledged under a later fence than this start's was acknowledged after it: one of its workers may hear of the start's answer late.
  void on(const WentOn& went, Report& report) {
    if (went.passes_over) loaded_in_ = std::max(loaded_in_, generations_.at(went.worker));
    const Generation& place = places_.at(went.worker);
    const auto claim = claims_.find({place.lineage, place.number});
    std::pair<std::uint64_t, std::uint64_t> newest{};
    for (const auto& [generation, acknowledged] : newest_)
      for (const std::pair<const std::uint64_t, std::uint64_t>& one : acknowledged)
        if (generation <= generations_.at(went.worker) && (claim == claims_.end() || one.first <= claim->second))
          newest = std::max<std::pair<std::uint64_t, std::uint64_t>>(newest, one);
    if (!went.passes_over && went.step < newest.second)
      report.violate(name, fmt::format("worker#{} goes on from step {}, although step {} was acknowledged under fence {}",
                                       went.worker.value(), went.step, newest.second, newest.first));
  }
  void on(const SaveStarted& one, Report&) { started_.insert({one.writer, one.root, one.fence, one.step, one.rank}); }
  void on(const SealedSlotLeft& one, Report& report) {
    if (!started_.contains({one.writer, one.root, one.fence, one.step, one.rank}))
      report.violate(name, fmt::format("rank {} is gone, and what it had sealed of step {} is not written", one.rank, one.step));
  }
  void on(const PartGivenUp& one, Report&) { given_up_.insert({one.writer, one.root, one.fence, one.step, one.rank}); }
  void on(const FillingSlotLeft& one, Report& report) {
    if (!given_up_.contains({one.writer, one.root, one.fence, one.step, one.rank}))
      report.violate(name, fmt::format("rank {} is gone, and nobody is told that its part of step {} never comes", one.rank, one.step));
  }
  void on(const SaveOver& one, Report& report) {
    if (!one.is_unchanged)
      report.violate(name, fmt::format("the slot of rank {} changed while its part of step {} was written", one.rank, one.step));
    if (is_calm && one.has_failed)
      report.violate(name, fmt::format("rank {}'s save of step {} failed, and nothing went wrong", one.rank, one.step));
  }
  void on(const SettledReported& told, Report& report) {
    if (told.saves > 0)
      report.violate(name,
                     fmt::format("process {} tells that all is settled, and {} saves are under way", told.writer.value(), told.saves));
  }
  void on(const SlotsHeld& held, Report& report) {
    if (held.slots > 2 * std::uint64_t{held.workers})
      report.violate(name, fmt::format("process {} holds {} slots of {} workers", held.writer.value(), held.slots, held.workers));
  }

 private:
  /// Two coordinators may have a world each: a second agent ran under the name of a node, and began anew. What its world saves while this one goes on, this one cannot know; it claims a later fence then, which
  /// ends the other one.
  [[nodiscard]] bool is_of_a_world_beside(std::uint64_t fence, Lineage here) const {
    const auto claim = claimed_by_.find(fence);
    return claim != claimed_by_.end() && claim->second.lineage != here && worlds_.at(here) < claim->second.worlds;
  }

  std::map<std::uint64_t, std::uint64_t> steps_;                            // the newest, by fence
  std::map<std::uint64_t, std::map<std::uint64_t, std::uint64_t>> newest_;  // steps, by the newest generation at that moment and by fence
  std::map<ProcessId, std::uint64_t> generations_;                          // of each worker, at its start,
  std::map<ProcessId, Generation> places_;                                  // and its newest place
  std::map<std::pair<Lineage, std::uint64_t>, std::uint64_t> claims_;       // the newest fence, by generation
  std::uint64_t generation_ = 0;                                            // the newest
  struct Saved {
    std::uint64_t fence = 0, step = 0;
    std::uint64_t generation = 0;  // the newest at that moment
    auto operator<=>(const Saved&) const = default;
  };
  std::map<std::uint64_t, Saved> saved_;   // the newest, by fence
  std::map<Lineage, std::size_t> worlds_;  // of each coordinator, how many there were before it
  struct Claim {
    Lineage lineage{};
    std::size_t worlds = 0;  // that had begun at that moment
  };
  std::map<std::uint64_t, Claim> claimed_by_;                        // by fence
  std::map<std::pair<Lineage, std::uint64_t>, Saved> saved_before_;  // each generation began
  std::uint64_t begun_ = 0;                                          // the newest generation
  std::uint64_t loaded_in_ = 0;                                      // the newest generation in which a start passed over a checkpoint
  using Part = std::tuple<ProcessId, std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t>;
  std::set<Part> started_, given_up_;
};

}  // namespace elrun::sim
